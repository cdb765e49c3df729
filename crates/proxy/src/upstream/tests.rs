use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, header};
use kv_blocks::WorkerId;
use net::{Address, Clock, Destinations, WorkerUrl};
use prometheus_client::registry::Registry;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

use super::{connection::UpstreamConnection, *};

const WORKER: WorkerId = WorkerId(1);
/// Longest wait for something that is certain to come.
const SOON: Duration = Duration::from_secs(60);
const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

/// What a worker does after one of its replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterReply {
    KeepsOpen,
    Closes,
}

/// A worker on a loopback port that sends these bytes for each request.
struct LoopbackWorker {
    port: u16,
    connections: Arc<AtomicUsize>,
    /// Heads of requests that were read whole.
    requests: Arc<AtomicUsize>,
    /// One item for each connection that this side closed.
    closed: mpsc::UnboundedReceiver<()>,
    task: JoinHandle<()>,
}

impl LoopbackWorker {
    async fn start(reply: impl Into<String>, after_reply: AfterReply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let [connections, requests] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
        let (closed_sender, closed) = mpsc::unbounded_channel();
        let (count, reply) = (Arc::clone(&connections), reply.into());
        let requests_read = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let (reply, closed_sender) = (reply.clone(), closed_sender.clone());
                let read = Arc::clone(&requests_read);
                tokio::spawn(async move {
                    if answer_all(stream, &reply, after_reply, &read).await {
                        let _ = closed_sender.send(());
                    }
                });
            }
        });
        Self {
            port,
            connections,
            requests,
            closed,
            task,
        }
    }

    fn url(&self) -> WorkerUrl {
        let url = format!("http://127.0.0.1:{}", self.port);
        url.parse().expect("a URL")
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    async fn wait_for_close(&mut self) {
        let closed = timeout(SOON, self.closed.recv()).await;
        closed.expect("in time").expect("the worker runs");
    }
}

impl Drop for LoopbackWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers and counts the requests of a connection; returns whether the other side closed it.
async fn answer_all(
    mut stream: TcpStream,
    reply: &str,
    after_reply: AfterReply,
    requests: &AtomicUsize,
) -> bool {
    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return true,
            Ok(read) => head.extend_from_slice(&buffer[..read]),
        }
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        head.clear();
        requests.fetch_add(1, Ordering::Relaxed);
        let _ = stream.write_all(reply.as_bytes()).await;
        if after_reply == AfterReply::Closes {
            return false;
        }
    }
}

fn pools() -> ConnectionPools {
    ConnectionPools::new(Clock::system(), &mut Registry::default())
}

fn request() -> Request<Bytes> {
    let mut request = Request::new(Bytes::new());
    let host = HeaderValue::from_static("worker");
    request.headers_mut().insert(header::HOST, host);
    request
}

async fn send(
    pools: &ConnectionPools,
    worker: &LoopbackWorker,
) -> Result<UpstreamReply, SendFailure> {
    let url = worker.url();
    let outgoing = OutgoingRequest {
        worker: WORKER,
        url: &url,
        request: request(),
        rest: None,
        connect_timeout: SOON,
    };
    timeout(SOON, pools.send(outgoing)).await.expect("in time")
}

/// Sends a request and reads its whole reply.
async fn exchange(pools: &ConnectionPools, worker: &LoopbackWorker) -> Bytes {
    let mut reply = send(pools, worker).await.expect("a reply");
    reply.body.read_to_end(100).await.expect("a whole reply")
}

/// Waits until a released connection is back in its pool.
async fn pooled(pools: &ConnectionPools) -> UpstreamConnection {
    let wait = async {
        loop {
            if let Some(connection) = pools.take(WORKER, pools.clock.now()) {
                return connection;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(SOON, wait).await.expect("it comes back")
}

#[tokio::test]
async fn a_connection_whose_reply_was_read_to_its_end_carries_the_next_request() {
    let worker = LoopbackWorker::start(HELLO, AfterReply::KeepsOpen).await;
    let pools = pools();
    for _ in 0..3 {
        assert_eq!(exchange(&pools, &worker).await, "hello");
        let connection = pooled(&pools).await;
        pools.release(WORKER, connection);
    }
    assert_eq!(worker.connections(), 1);
}

#[tokio::test]
async fn a_reply_that_is_dropped_or_closed_before_its_end_closes_its_connection() {
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello";
    let mut worker = LoopbackWorker::start(half, AfterReply::KeepsOpen).await;
    let pools = pools();
    let mut dropped = send(&pools, &worker).await.expect("a head").body;
    assert_eq!(
        dropped.next_data().await.expect("data").expect("data"),
        "hello"
    );
    drop(dropped);
    worker.wait_for_close().await;
    let mut closed = send(&pools, &worker).await.expect("a head").body;
    closed.close();
    worker.wait_for_close().await;
    closed.release();
    assert!(pools.take(WORKER, pools.clock.now()).is_none());
}

#[tokio::test]
async fn a_request_that_is_dropped_before_its_reply_closes_its_connection() {
    let mut worker = LoopbackWorker::start("", AfterReply::KeepsOpen).await;
    let pools = pools();
    let url = worker.url();
    let outgoing = OutgoingRequest {
        worker: WORKER,
        url: &url,
        request: request(),
        rest: None,
        connect_timeout: SOON,
    };
    let received = async {
        while worker.requests() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        _ = pools.send(outgoing) => panic!("the worker never answers"),
        received = timeout(SOON, received) => received.expect("in time"),
    }
    worker.wait_for_close().await;
}

#[tokio::test]
async fn an_idle_connection_is_used_and_kept_for_less_than_four_seconds() {
    let worker = LoopbackWorker::start(HELLO, AfterReply::KeepsOpen).await;
    let pools = pools();
    let keep = async || {
        exchange(&pools, &worker).await;
        let connection = pooled(&pools).await;
        pools.release(WORKER, connection);
    };
    keep().await;
    let late = pools.clock.now() + Duration::from_secs(4);
    assert!(pools.take(WORKER, late).is_none());
    assert!(
        pools.take(WORKER, pools.clock.now()).is_none(),
        "it is closed"
    );
    // Of before its release: it is not idle for longer where the machine stands still.
    let earlier = pools.clock.now();
    keep().await;
    pools.close_idle(earlier + Duration::from_secs(1));
    let used = pools.take(WORKER, earlier);
    pools.release(WORKER, used.expect("it is kept"));
    pools.close_idle(pools.clock.now() + Duration::from_secs(4));
    assert!(pools.take(WORKER, pools.clock.now()).is_none());
}

#[tokio::test]
async fn the_connections_of_one_worker_are_closed_and_those_of_others_stay() {
    let worker = LoopbackWorker::start(HELLO, AfterReply::KeepsOpen).await;
    let pools = pools();
    exchange(&pools, &worker).await;
    let connection = pooled(&pools).await;
    pools.release(WORKER, connection);
    pools.close_worker(WorkerId(2));
    let connection = pooled(&pools).await;
    pools.release(WORKER, connection);
    pools.close_worker(WORKER);
    assert!(pools.take(WORKER, pools.clock.now()).is_none());
}

#[tokio::test]
async fn a_connection_that_its_worker_closed_while_idle_is_not_used_again() {
    let worker = LoopbackWorker::start(HELLO, AfterReply::Closes).await;
    let pools = pools();
    for sent in 1..=3 {
        assert_eq!(exchange(&pools, &worker).await, "hello");
        assert_eq!(worker.connections(), sent);
        let notice = async {
            while let Some(connection) = pools.take(WORKER, pools.clock.now()) {
                pools.release(WORKER, connection);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, notice).await.expect("it is noticed");
    }
}

#[tokio::test]
async fn the_failure_says_whether_the_worker_can_have_seen_the_request() {
    let long_head = format!("HTTP/1.1 200 OK\r\nx-long: {}\r\n\r\n", "a".repeat(1 << 20));
    for (reply, failure) in [
        ("", SendFailure::NoHead),
        ("HTTP/1.1 200 OK\r\ncontent", SendFailure::NoHead),
        ("SSH-2.0-OpenSSH_9.6\r\n", SendFailure::Protocol),
        (&*long_head, SendFailure::Protocol),
    ] {
        let worker = LoopbackWorker::start(reply, AfterReply::Closes).await;
        let failed = send(&pools(), &worker).await.map(drop);
        assert_eq!(failed, Err(failure), "{reply:.30}");
    }
    let gone = LoopbackWorker::start("", AfterReply::Closes).await;
    gone.task.abort();
    let wait = async { while TcpStream::connect(("127.0.0.1", gone.port)).await.is_ok() {} };
    timeout(SOON, wait).await.expect("the port closes");
    let refused = send(&pools(), &gone).await.expect_err("the port is closed");
    assert_eq!(refused, SendFailure::NotSent(NotSent::Refused));
}

#[tokio::test]
async fn a_reply_is_read_whole_or_says_why_not() {
    let reply = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}");
    let chunked = "transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n";
    for (reply, read) in [
        (HELLO.to_owned(), Ok(Bytes::from_static(b"hello"))),
        (reply("\r\nhello"), Ok("hello".into())),
        // Trailers are skipped.
        (
            reply(&format!("{chunked}0\r\nx-sum: 1\r\n\r\n")),
            Ok("hello".into()),
        ),
        (reply(chunked), Err(ReadError::Broken)),
        (
            reply("content-length: 9\r\n\r\nhello"),
            Err(ReadError::Broken),
        ),
        (
            reply("content-length: 6\r\n\r\nhello!"),
            Err(ReadError::TooLong),
        ),
        (reply("\r\nhello!"), Err(ReadError::TooLong)),
    ] {
        let worker = LoopbackWorker::start(reply.as_str(), AfterReply::Closes).await;
        let mut body = send(&pools(), &worker).await.expect("a head").body;
        let got = timeout(SOON, body.read_to_end(5)).await.expect("in time");
        assert_eq!(got, read, "{reply}");
    }
}

#[tokio::test]
async fn a_reply_that_announces_its_length_knows_its_end_without_another_read() {
    let worker = LoopbackWorker::start(HELLO, AfterReply::KeepsOpen).await;
    let mut body = send(&pools(), &worker).await.expect("a head").body;
    assert_eq!((body.announced(), body.is_end()), (Some(5), false));
    body.next_data().await.expect("data").expect("data");
    assert_eq!((body.announced(), body.is_end()), (Some(0), true));
    let endless = "HTTP/1.1 200 OK\r\n\r\nhello";
    let worker = LoopbackWorker::start(endless, AfterReply::Closes).await;
    let body = send(&pools(), &worker).await.expect("a head").body;
    assert_eq!(body.announced(), None);
}

#[tokio::test]
async fn a_reply_that_comes_before_the_whole_request_is_sent_is_not_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let worker = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        stream.read_exact(&mut [0; 64]).await.expect("a request");
        let refusal = "HTTP/1.1 413 Content Too Large\r\ncontent-length: 4\r\n\r\nlong";
        let written = stream.write_all(refusal.as_bytes()).await;
        written.expect("the router reads meanwhile");
        // It closes with most of the request unread, which resets the connection.
    });
    let mut request = request();
    *request.body_mut() = vec![b' '; 64 << 20].into();
    *request.method_mut() = http::Method::POST;
    let address = Address::Tcp {
        host: "127.0.0.1".to_owned(),
        port,
    };
    let sent = timeout(SOON, send_once(&address, Destinations::Any, request, SOON)).await;
    let mut reply = sent.expect("in time").expect("a reply");
    assert_eq!(reply.head.status, 413);
    assert_eq!(reply.body.read_to_end(4).await.expect("whole"), "long");
    worker.await.expect("it ends");
}

#[tokio::test]
async fn a_connection_whose_request_is_not_as_long_as_announced_carries_no_other_one() {
    for announced in [4, 9] {
        let mut worker = LoopbackWorker::start(HELLO, AfterReply::KeepsOpen).await;
        let (pools, url) = (pools(), worker.url());
        let mut request = request();
        // The worker answers what ends like a head.
        *request.body_mut() = Bytes::from_static(b"a\r\n\r\n");
        let length = HeaderValue::from(announced);
        request.headers_mut().insert(header::CONTENT_LENGTH, length);
        let outgoing = OutgoingRequest {
            worker: WORKER,
            url: &url,
            request,
            rest: None,
            connect_timeout: SOON,
        };
        let sent = timeout(SOON, pools.send(outgoing)).await.expect("in time");
        if let Ok(mut reply) = sent {
            let _ = timeout(SOON, reply.body.read_to_end(5)).await;
        }
        worker.wait_for_close().await;
        assert!(pools.take(WORKER, pools.clock.now()).is_none());
    }
}

#[tokio::test]
async fn a_reply_with_two_lengths_ends_its_connection() {
    let reply =
        "HTTP/1.1 200 OK\r\ncontent-length: 99\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    let mut worker = LoopbackWorker::start(reply, AfterReply::KeepsOpen).await;
    let pools = pools();
    assert_eq!(exchange(&pools, &worker).await, "");
    worker.wait_for_close().await;
    assert!(pools.take(WORKER, pools.clock.now()).is_none());
}

#[tokio::test]
async fn a_connection_to_a_server_that_is_no_worker_is_closed_after_its_reply() {
    let mut server = LoopbackWorker::start(HELLO, AfterReply::KeepsOpen).await;
    let address = Address::Tcp {
        host: "127.0.0.1".to_owned(),
        port: server.port,
    };
    let sent = timeout(
        SOON,
        send_once(&address, Destinations::Any, request(), SOON),
    )
    .await;
    let mut body = sent.expect("in time").expect("a reply").body;
    assert_eq!(body.read_to_end(5).await.expect("whole"), "hello");
    server.wait_for_close().await;
}

#[test]
fn every_local_fault_is_counted_also_where_its_log_line_is_left_out() {
    let (mut registry, clock) = (Registry::default(), Clock::system());
    let pools = ConnectionPools::new(clock, &mut registry);
    let error = std::io::Error::from_raw_os_error(24);
    let fault = net::LocalFault::of(&error).expect("no descriptors are left");
    for _ in 0..3 {
        pools.local_faults.record(fault, &error, clock.now());
    }
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).expect("a page");
    assert!(
        page.contains("warmroute_local_failures_total 3\n"),
        "{page}"
    );
}

#[tokio::test]
async fn a_fake_worker_follows_its_script_and_refuses_after_it() {
    let upstream = FakeUpstream::default();
    upstream.script(WORKER, FakeReply::events([Ok("a".into()), Err("reset")]));
    let url: WorkerUrl = "http://w".parse().expect("a URL");
    let send = || {
        upstream.send(OutgoingRequest {
            worker: WORKER,
            url: &url,
            request: request(),
            rest: None,
            connect_timeout: SOON,
        })
    };
    let mut body = send().await.expect("a reply").body;
    assert_eq!(body.next_data().await.expect("data").expect("data"), "a");
    assert!(body.next_data().await.expect("an error").is_err());
    body.close();
    assert_eq!(upstream.released(), 0);
    let refused = send().await.expect_err("the script is over");
    assert_eq!(refused, SendFailure::NotSent(NotSent::Refused));
    assert_eq!(upstream.take_requests().len(), 2);
}
