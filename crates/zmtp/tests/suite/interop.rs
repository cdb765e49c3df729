//! Interoperation with libzmq, through `zmq` of the Python in `WARMROUTE_TEST_PYTHON`, or of
//! `python3`. Without it the tests are skipped.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use zmtp::{Dealer, Endpoint, Limits, Pub, PubSettings, Router, Sub, SubEvent};

use crate::sockets::until_quiet;

const PATIENCE: Duration = Duration::from_secs(120);

/// A running Python script with `zmq`, `ctx` and `endpoint` defined. Killed when dropped.
struct Python(Child);

impl Python {
    fn run(endpoint: &str, script: &str) -> Self {
        let script =
            format!("import sys, zmq\nctx = zmq.Context()\nendpoint = {endpoint:?}\n{script}");
        Self(
            Command::new(test_programs::python())
                .args(["-u", "-c", &script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        )
    }

    /// Returns the next line of its output.
    async fn line(&mut self) -> String {
        let stdout = self.0.stdout.take().unwrap();
        let read = tokio::task::spawn_blocking(move || {
            let (mut reader, mut line) = (BufReader::with_capacity(1, stdout), String::new());
            reader.read_line(&mut line).unwrap();
            (line.trim_end().to_owned(), reader.into_inner())
        });
        let (line, stdout) = tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
        self.0.stdout = Some(stdout);
        line
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap()
}

async fn message(sub: &mut Sub) -> Vec<Bytes> {
    loop {
        if let SubEvent::Message { frames, .. } = soon(sub.next()).await {
            return frames;
        }
    }
}

fn any() -> Endpoint {
    "tcp://127.0.0.1:0".parse().unwrap()
}

/// Publishes its number for ever, since the arrival of a subscription is not visible.
const PUBLISH: &str = "
import time
for n in range(10**9):
    s.send_multipart([b'kv@a', n.to_bytes(8, 'big'), b'x' * 70000]); s.send_multipart([b'other', b'', b''])
    time.sleep(0.01)
";

#[tokio::test]
async fn our_sub_reads_a_bound_pub_of_libzmq_over_tcp_and_ipc_and_detects_its_end() {
    test_programs::require!(Libzmq);
    let dir = tempfile::tempdir().unwrap();
    for at in [
        "tcp://127.0.0.1:*".to_owned(),
        format!("ipc://{}/kv.sock", dir.path().display()),
    ] {
        let bind = "s = ctx.socket(zmq.PUB); s.bind(endpoint); print(s.getsockopt_string(zmq.LAST_ENDPOINT))";
        let mut python = Python::run(&at, &format!("{bind}{PUBLISH}"));
        let endpoint: Endpoint = python.line().await.parse().unwrap();
        let mut sub = Sub::connect(&endpoint, &[b"kv@"], Limits::default()).unwrap();
        let event = soon(sub.next()).await;
        assert!(
            matches!(event, SubEvent::Connected { peer: 1, .. }),
            "{event:?}"
        );
        let number = |frames: &[Bytes]| u64::from_be_bytes(frames[1].as_ref().try_into().unwrap());
        let first = message(&mut sub).await;
        assert_eq!((first[0].as_ref(), first[2].len()), (&b"kv@a"[..], 70_000));
        for step in 1..5 {
            assert_eq!(number(&message(&mut sub).await), number(&first) + step);
        }
        drop(python);
        let end = async {
            loop {
                match sub.next().await {
                    SubEvent::Message { .. } => {}
                    other => return other,
                }
            }
        };
        assert!(matches!(
            soon(end).await,
            SubEvent::Disconnected { peer: 1, .. }
        ));
    }
}

#[tokio::test]
async fn libzmq_answers_our_pings() {
    test_programs::require!(Libzmq);
    let script = "s = ctx.socket(zmq.PUB); s.bind_to_random_port('tcp://127.0.0.1')
print(s.getsockopt_string(zmq.LAST_ENDPOINT)); sys.stdin.read()";
    let mut python = Python::run("", script);
    let endpoint: Endpoint = python.line().await.parse().unwrap();
    let limits = Limits {
        heartbeat: Duration::from_millis(100),
        ..Limits::default()
    };
    let mut sub = Sub::connect(&endpoint, &[b""], limits).unwrap();
    let event = soon(sub.next()).await;
    assert!(
        matches!(event, SubEvent::Connected { peer: 1, .. }),
        "{event:?}"
    );
    until_quiet(&mut sub, Duration::from_secs(1)).await;
}

#[tokio::test]
async fn our_bound_sub_accepts_a_connecting_pub_of_libzmq() {
    test_programs::require!(Libzmq);
    let (mut sub, endpoint) = Sub::bind(&any(), &[b"kv@"], Limits::default())
        .await
        .unwrap();
    let _python = Python::run(
        &endpoint.to_string(),
        &format!("s = ctx.socket(zmq.PUB); s.connect(endpoint){PUBLISH}"),
    );
    assert_eq!(message(&mut sub).await[0].as_ref(), b"kv@a");
}

#[tokio::test]
async fn a_sub_of_libzmq_reads_our_pub() {
    test_programs::require!(Libzmq);
    let (publisher, endpoint) = Pub::bind(&any(), PubSettings::default()).await.unwrap();
    let script = "s = ctx.socket(zmq.SUB); s.setsockopt(zmq.SUBSCRIBE, b'kv@'); s.connect(endpoint)
for _ in range(2):
    m = s.recv_multipart(); print(m[0].decode(), m[1].hex(), len(m[2]))
s.setsockopt(zmq.UNSUBSCRIBE, b'kv@'); sys.stdin.read()";
    let mut python = Python::run(&endpoint.to_string(), script);
    let mut subscribers = publisher.watch_subscribers();
    soon(subscribers.wait_for(|count| *count == 1))
        .await
        .unwrap();
    for size in [0, 70_000] {
        publisher.send(&[b"other".to_vec(), vec![], vec![]]);
        publisher.send(&[b"kv@a".to_vec(), vec![0, 255], vec![0; size]]);
    }
    assert_eq!(python.line().await, "kv@a 00ff 0");
    assert_eq!(python.line().await, "kv@a 00ff 70000");
    soon(subscribers.wait_for(|count| *count == 0))
        .await
        .unwrap();
}

#[tokio::test]
async fn our_pub_feeds_a_bound_sub_of_libzmq() {
    test_programs::require!(Libzmq);
    let script = "s = ctx.socket(zmq.SUB); s.setsockopt(zmq.SUBSCRIBE, b''); s.bind_to_random_port('tcp://127.0.0.1')
print(s.getsockopt_string(zmq.LAST_ENDPOINT)); print(s.recv_multipart())";
    let mut python = Python::run("", script);
    let endpoint: Endpoint = python.line().await.parse().unwrap();
    let publisher = Pub::connect(&endpoint, PubSettings::default()).unwrap();
    soon(publisher.watch_subscribers().wait_for(|count| *count == 1))
        .await
        .unwrap();
    publisher.send(&["a", "b"]);
    assert_eq!(python.line().await, "[b'a', b'b']");
}

#[tokio::test]
async fn our_dealer_is_answered_by_a_router_of_libzmq() {
    test_programs::require!(Libzmq);
    let script = "s = ctx.socket(zmq.ROUTER); s.bind_to_random_port('tcp://127.0.0.1')
print(s.getsockopt_string(zmq.LAST_ENDPOINT))
who, empty, start = s.recv_multipart()
for n in range(int.from_bytes(start, 'big'), 2000):
    s.send_multipart([who, b'', b'topic', n.to_bytes(8, 'big'), b'x' * 500])
s.send_multipart([who, b'', b'', b'\\xff' * 8, b'']); sys.stdin.read()";
    let mut python = Python::run("", script);
    let endpoint: Endpoint = python.line().await.parse().unwrap();
    let mut dealer = Dealer::connect(&endpoint, Limits::default(), PATIENCE)
        .await
        .unwrap();
    dealer
        .send(&[&b""[..], &5_u64.to_be_bytes()])
        .await
        .unwrap();
    // libzmq sends to one ROUTER peer at most its high-water mark ahead, 1000 by default, and drops
    // the rest.
    for number in 5..1000_u64 {
        let got = soon(dealer.recv()).await.unwrap();
        assert_eq!((got.len(), got[2].as_ref()), (4, &number.to_be_bytes()[..]));
    }
}

#[tokio::test]
async fn dealers_and_reqs_of_libzmq_are_answered_by_our_router() {
    test_programs::require!(Libzmq);
    let (mut router, endpoint) = Router::bind(&any(), Limits::default()).await.unwrap();
    let script =
        "d = ctx.socket(zmq.DEALER); d.setsockopt(zmq.IDENTITY, b'me'); d.connect(endpoint)
d.send_multipart([b'', b'1']); print(d.recv_multipart())
r = ctx.socket(zmq.REQ); r.connect(endpoint); r.send(b'2'); print(r.recv())";
    let mut python = Python::run(&endpoint.to_string(), script);
    let (peer, got) = soon(router.recv()).await;
    assert_eq!(
        (peer.0.as_ref(), got),
        (&b"me"[..], vec![Bytes::new(), Bytes::from_static(b"1")])
    );
    assert!(router.send(&peer, &["", "one"]).await);
    assert_eq!(python.line().await, "[b'', b'one']");
    let (peer, got) = soon(router.recv()).await;
    assert_eq!(
        (peer.0[0], got),
        (0, vec![Bytes::new(), Bytes::from_static(b"2")])
    );
    assert!(router.send(&peer, &["", "two"]).await);
    assert_eq!(python.line().await, "b'two'");
}
