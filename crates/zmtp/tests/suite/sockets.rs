//! The sockets against each other and against scripted peers, over loopback and unix sockets.

use std::time::Duration;

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use zmtp::{Dealer, Disconnect, Endpoint, Limits, Pub, PubSettings, Router, Sub, SubEvent};

/// Time limit of a wait; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

fn any() -> Endpoint {
    "tcp://127.0.0.1:0".parse().unwrap()
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap()
}

async fn subscribed(publisher: &Pub, count: usize) {
    soon(publisher.watch_subscribers().wait_for(|now| *now == count))
        .await
        .unwrap();
}

async fn message(sub: &mut Sub) -> Vec<Bytes> {
    loop {
        if let SubEvent::Message { frames, .. } = soon(sub.next()).await {
            return frames;
        }
    }
}

async fn reason_of_end(sub: &mut Sub) -> String {
    loop {
        match soon(sub.next()).await {
            SubEvent::Disconnected { reason, .. } | SubEvent::Unreachable { reason, .. } => {
                return reason;
            }
            _ => {}
        }
    }
}

/// Waits until a connection lasts for this time and nothing arrives. Where the machine stands
/// still, it may end and is made again; one whose pings get no answer ends each time.
pub(crate) async fn until_quiet(sub: &mut Sub, time: Duration) {
    let mut is_connected = true;
    for _ in 0..20 {
        match tokio::time::timeout(time, sub.next()).await {
            Err(_) if is_connected => return,
            // The pause before a further attempt is quiet, too.
            Err(_) => {}
            Ok(SubEvent::Connected { .. }) => is_connected = true,
            Ok(SubEvent::Disconnected { .. } | SubEvent::Unreachable { .. }) => {
                is_connected = false;
            }
            Ok(event @ SubEvent::Message { .. }) => panic!("{event:?}"),
        }
    }
    panic!("the connection ends again and again");
}

fn frames(list: &[&[u8]]) -> Vec<Bytes> {
    list.iter()
        .map(|frame| Bytes::copy_from_slice(frame))
        .collect()
}

/// Returns a greeting and a READY as bytes.
fn hello(socket: &str) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    bytes.extend_from_slice(&[4, u8::try_from(22 + socket.len()).unwrap(), 5]);
    bytes.extend_from_slice(b"READY\x0bSocket-Type\x00\x00\x00");
    bytes.push(u8::try_from(socket.len()).unwrap());
    bytes.extend_from_slice(socket.as_bytes());
    bytes
}

#[tokio::test]
async fn messages_of_any_length_reach_a_subscriber_over_tcp_and_ipc_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let ipc = Endpoint::Ipc(dir.path().join("kv.sock"));
    for at in [any(), ipc] {
        let (publisher, endpoint) = Pub::bind(&at, PubSettings::default()).await.unwrap();
        let mut sub = Sub::connect(&endpoint, &[b""], Limits::default()).unwrap();
        let event = soon(sub.next()).await;
        assert!(
            matches!(event, SubEvent::Connected { peer: 1, .. }),
            "{event:?}"
        );
        let receive = async {
            for size in [0, 1, 255, 256, 70_000, 3_000_000] {
                let got = message(&mut sub).await;
                assert_eq!((got[0].as_ref(), got[1].len()), (&b"topic"[..], size));
            }
        };
        let send = async {
            subscribed(&publisher, 1).await;
            for size in [0, 1, 255, 256, 70_000, 3_000_000] {
                publisher.send(&[b"topic".to_vec(), vec![7; size]]);
            }
        };
        tokio::join!(receive, send);
        assert_eq!(publisher.dropped(), 0);
    }
}

#[tokio::test]
async fn a_subscriber_gets_its_subscribed_topics() {
    let (publisher, endpoint) = Pub::bind(&any(), PubSettings::default()).await.unwrap();
    let mut sub = Sub::connect(&endpoint, &[b"kv@", b"x"], Limits::default()).unwrap();
    let send = async {
        subscribed(&publisher, 1).await;
        // The second subscription may still be in transit: the message that matches the first comes
        // last.
        for topic in ["", "kv", "kv@b", "other", "kv@c"] {
            publisher.send(&[topic]);
        }
    };
    let receive = async { (message(&mut sub).await, message(&mut sub).await) };
    let ((), got) = tokio::join!(send, receive);
    assert_eq!(got, (frames(&[b"kv@b"]), frames(&[b"kv@c"])));
}

#[tokio::test]
async fn every_lost_connection_is_an_event_and_the_next_one_follows() {
    let (publisher, endpoint) = Pub::bind(&any(), PubSettings::default()).await.unwrap();
    let mut sub = Sub::connect(&endpoint, &[b""], Limits::default()).unwrap();
    let event = soon(sub.next()).await;
    assert!(
        matches!(event, SubEvent::Connected { peer: 1, .. }),
        "{event:?}"
    );
    drop(publisher);
    let lost = soon(sub.next()).await;
    assert!(
        matches!(lost, SubEvent::Disconnected { peer: 1, .. }),
        "{lost:?}"
    );
    let refused = soon(sub.next()).await;
    assert!(
        matches!(refused, SubEvent::Unreachable { .. }),
        "{refused:?}"
    );

    let (publisher, _) = Pub::bind(&endpoint, PubSettings::default()).await.unwrap();
    let connected = async {
        loop {
            match sub.next().await {
                SubEvent::Unreachable { .. } => {}
                other => return other,
            }
        }
    };
    let event = soon(connected).await;
    assert!(
        matches!(event, SubEvent::Connected { peer: 2, .. }),
        "{event:?}"
    );
    let send = async {
        subscribed(&publisher, 1).await;
        publisher.send(&["again"]);
    };
    let (got, ()) = tokio::join!(message(&mut sub), send);
    assert_eq!(got, frames(&[b"again"]));
}

#[tokio::test]
async fn a_cancelled_wait_loses_nothing() {
    let (publisher, endpoint) = Pub::bind(&any(), PubSettings::default()).await.unwrap();
    let mut sub = Sub::connect(&endpoint, &[b""], Limits::default()).unwrap();
    let receive = async {
        let mut got = Vec::new();
        while got.len() < 200 {
            // The wait is polled once and dropped, repeatedly, from the connection attempt to the
            // last message.
            tokio::select! {
                biased;
                event = sub.next() => if let SubEvent::Message { frames, .. } = event {
                    got.push(u32::from_be_bytes(frames[0].as_ref().try_into().unwrap()));
                },
                () = tokio::task::yield_now() => {}
            }
        }
        got
    };
    let send = async {
        subscribed(&publisher, 1).await;
        for number in 0..200_u32 {
            publisher.send(&[number.to_be_bytes().to_vec(), vec![0; 1000]]);
            tokio::task::yield_now().await;
        }
    };
    let (got, ()) = soon(async { tokio::join!(receive, send) }).await;
    assert_eq!(got, (0..200).collect::<Vec<u32>>());
}

#[tokio::test]
async fn a_bound_subscriber_distinguishes_its_publishers() {
    let (mut sub, endpoint) = Sub::bind(&any(), &[b""], Limits::default()).await.unwrap();
    let first = Pub::connect(&endpoint, PubSettings::default()).unwrap();
    let event = soon(sub.next()).await;
    assert!(
        matches!(event, SubEvent::Connected { peer: 1, .. }),
        "{event:?}"
    );
    let second = Pub::connect(&endpoint, PubSettings::default()).unwrap();
    let event = soon(sub.next()).await;
    assert!(
        matches!(event, SubEvent::Connected { peer: 2, .. }),
        "{event:?}"
    );
    subscribed(&first, 1).await;
    subscribed(&second, 1).await;
    second.send(&["from the second"]);
    assert_eq!(
        soon(sub.next()).await,
        SubEvent::Message {
            peer: 2,
            frames: frames(&[b"from the second"])
        }
    );
    drop(first);
    assert!(matches!(
        soon(sub.next()).await,
        SubEvent::Disconnected { peer: 1, .. }
    ));
}

#[tokio::test]
async fn a_subscriber_that_reads_nothing_loses_messages_and_delays_nobody() {
    let settings = PubSettings {
        queue_messages: 8,
        ..PubSettings::default()
    };
    let (publisher, endpoint) = Pub::bind(&any(), settings).await.unwrap();
    let mut stuck = Sub::connect(&endpoint, &[b""], Limits::default()).unwrap();
    soon(stuck.next()).await;
    // Its subscription is written at its next poll.
    let _ = tokio::time::timeout(Duration::from_millis(200), stuck.next()).await;
    subscribed(&publisher, 1).await;

    let payload = vec![0; 100_000];
    for sent in 0_u32.. {
        publisher.send(&[&payload]);
        if publisher.dropped() > 0 {
            break;
        }
        assert!(sent < 10_000, "no message was dropped");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_queue_is_also_bounded_in_bytes() {
    let settings = PubSettings {
        queue_bytes: 1000,
        ..PubSettings::default()
    };
    let (publisher, endpoint) = Pub::bind(&any(), settings).await.unwrap();
    let mut sub = Sub::connect(&endpoint, &[b""], Limits::default()).unwrap();
    let (got, ()) = tokio::join!(message(&mut sub), async {
        subscribed(&publisher, 1).await;
        // Sent without a pause, so that the connection's task cannot take the first message.
        publisher.send(&[vec![1; 5000]]);
        publisher.send(&[vec![2; 10]]);
    });
    assert_eq!(got[0].len(), 5000, "one message passes whatever its length");
    assert_eq!(publisher.dropped(), 1);
}

#[tokio::test]
async fn closing_a_publisher_flushes_its_queue() {
    let (publisher, endpoint) = Pub::bind(&any(), PubSettings::default()).await.unwrap();
    let mut sub = Sub::connect(&endpoint, &[b""], Limits::default()).unwrap();
    let receive = async {
        let mut count = 0;
        loop {
            match sub.next().await {
                SubEvent::Message { .. } => count += 1,
                SubEvent::Disconnected { .. } => return count,
                _ => {}
            }
        }
    };
    let send = async {
        subscribed(&publisher, 1).await;
        (0..100).for_each(|_| publisher.send(&[vec![0; 50_000]]));
        publisher.close(PATIENCE).await;
    };
    let (count, ()) = soon(async { tokio::join!(receive, send) }).await;
    assert_eq!(count, 100);
}

#[tokio::test]
async fn dealers_and_a_router_exchange_whole_messages() {
    let (mut router, endpoint) = Router::bind(&any(), Limits::default()).await.unwrap();
    let mut one = Dealer::connect(&endpoint, Limits::default(), PATIENCE)
        .await
        .unwrap();
    let mut two = Dealer::connect(&endpoint, Limits::default(), PATIENCE)
        .await
        .unwrap();
    one.send(&[&b""[..], b"one"]).await.unwrap();
    let (first, got) = soon(router.recv()).await;
    assert_eq!(got, frames(&[b"", b"one"]));
    two.send(&["two"]).await.unwrap();
    let (second, _) = soon(router.recv()).await;
    assert_ne!(first, second);

    assert!(router.send(&second, &["to two"]).await);
    assert!(router.send(&first, &["to one"]).await);
    assert_eq!(soon(one.recv()).await.unwrap(), frames(&[b"to one"]));
    assert_eq!(soon(two.recv()).await.unwrap(), frames(&[b"to two"]));

    drop(router);
    assert!(matches!(
        soon(one.recv()).await,
        Err(Disconnect::Closed | Disconnect::Io(_))
    ));
}

#[tokio::test]
async fn a_message_to_a_peer_that_left_is_reported_lost() {
    let (mut router, endpoint) = Router::bind(&any(), Limits::default()).await.unwrap();
    let mut dealer = Dealer::connect(&endpoint, Limits::default(), PATIENCE)
        .await
        .unwrap();
    dealer.send(&["hello"]).await.unwrap();
    let (peer, _) = soon(router.recv()).await;
    drop(dealer);
    soon(async {
        while router.send(&peer, &["anybody there"]).await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_router_identifies_a_peer_by_its_routing_id_and_refuses_a_duplicate() {
    let (mut router, endpoint) = Router::bind(&any(), Limits::default()).await.unwrap();
    let mut hello = hello("DEALER");
    hello[65] += 15;
    hello.extend_from_slice(b"\x08Identity\x00\x00\x00\x02me");
    hello.extend_from_slice(b"\x00\x02hi");
    let connect = || TcpStream::connect(("127.0.0.1", endpoint.port().unwrap()));
    let mut first = connect().await.unwrap();
    first.write_all(&hello).await.unwrap();
    let (peer, got) = soon(router.recv()).await;
    assert_eq!((peer.0.as_ref(), got), (&b"me"[..], frames(&[b"hi"])));

    let mut second = connect().await.unwrap();
    second.write_all(&hello).await.unwrap();
    let mut end = Vec::new();
    // A close with unread bytes may reset the connection.
    let _ = soon(second.read_to_end(&mut end)).await;
    assert!(router.send(&peer, &["for the first"]).await);
    let mut got = vec![0; 64 + 30];
    soon(first.read_exact(&mut got)).await.unwrap();
    let mut rest = [0; 15];
    soon(first.read_exact(&mut rest)).await.unwrap();
    assert_eq!(&rest, b"\x00\x0dfor the first");
}

#[tokio::test]
async fn a_header_of_an_absurd_length_is_refused_by_every_socket() {
    let attack = |socket: &str| {
        let mut bytes = hello(socket);
        bytes.push(0b010);
        bytes.extend_from_slice(&(1_u64 << 62).to_be_bytes());
        bytes
    };
    // Sockets that connect.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint: Endpoint = format!("tcp://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let mut sub = Sub::connect(&endpoint, &[b""], Limits::default()).unwrap();
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&attack("PUB")).await.unwrap();
        stream
    };
    let (reason, _peer) = tokio::join!(reason_of_end(&mut sub), serve);
    assert!(reason.contains("4611686018427387904"), "{reason}");
    drop(sub);
    let request = async {
        let mut dealer = Dealer::connect(&endpoint, Limits::default(), PATIENCE).await?;
        dealer.recv().await
    };
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&attack("ROUTER")).await.unwrap();
        stream
    };
    let (result, _peer) = soon(async { tokio::join!(request, serve) }).await;
    assert!(matches!(result, Err(Disconnect::Protocol(_))));

    // Sockets that bind: the connection is closed.
    let (_publisher, of_pub) = Pub::bind(&any(), PubSettings::default()).await.unwrap();
    let (_router, of_router) = Router::bind(&any(), Limits::default()).await.unwrap();
    let (mut bound, of_sub) = Sub::bind(&any(), &[b""], Limits::default()).await.unwrap();
    for (endpoint, socket) in [(of_pub, "SUB"), (of_router, "DEALER"), (of_sub, "PUB")] {
        let mut stream = TcpStream::connect(("127.0.0.1", endpoint.port().unwrap()))
            .await
            .unwrap();
        stream.write_all(&attack(socket)).await.unwrap();
        let mut answer = Vec::new();
        let _ = soon(stream.read_to_end(&mut answer)).await;
        assert!(answer.len() < 200, "{socket}");
    }
    assert!(
        reason_of_end(&mut bound)
            .await
            .contains("4611686018427387904")
    );
}

#[tokio::test]
async fn a_peer_without_a_handshake_is_disconnected() {
    let limits = Limits {
        handshake_timeout: Duration::from_millis(100),
        ..Limits::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint: Endpoint = format!("tcp://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let mut sub = Sub::connect(&endpoint, &[b""], limits.clone()).unwrap();
    assert!(
        reason_of_end(&mut sub)
            .await
            .contains("no zmtp handshake within 100ms")
    );
    let dealer = Dealer::connect(&endpoint, limits.clone(), PATIENCE).await;
    assert!(matches!(dealer, Err(Disconnect::HandshakeTimeout(_))));

    let (_router, endpoint) = Router::bind(&any(), limits).await.unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", endpoint.port().unwrap()))
        .await
        .unwrap();
    let mut greeting = Vec::new();
    soon(stream.read_to_end(&mut greeting)).await.unwrap();
    assert_eq!(greeting.len(), 64);
}

#[tokio::test]
async fn a_silent_peer_is_pinged_and_then_disconnected() {
    let limits = Limits {
        heartbeat: Duration::from_millis(50),
        ..Limits::default()
    };
    // Where the machine stands still, the time of a connection may be over before its first ping.
    let mut is_pinged = false;
    for _ in 0..10 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint: Endpoint = format!("tcp://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let mut sub = Sub::connect(&endpoint, &[b""], limits.clone()).unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&hello("PUB")).await.unwrap();
            let mut sent = Vec::new();
            stream.read_to_end(&mut sent).await.unwrap();
            sent
        };
        let follow = async {
            let reason = reason_of_end(&mut sub).await;
            drop(sub);
            reason
        };
        let (reason, sent) = soon(async { tokio::join!(follow, serve) }).await;
        assert!(
            reason.contains("nothing was heard from the peer for 150ms"),
            "{reason}"
        );
        let mut parts = sent.windows(9);
        is_pinged = parts.any(|bytes| bytes == b"\x04\x07\x04PING\x00\x00");
        if is_pinged {
            break;
        }
    }
    assert!(is_pinged, "the peer was never pinged");
}

#[tokio::test]
async fn a_quiet_publisher_that_answers_pings_is_kept() {
    let limits = Limits {
        heartbeat: Duration::from_millis(20),
        ..Limits::default()
    };
    let (publisher, endpoint) = Pub::bind(&any(), PubSettings::default()).await.unwrap();
    let mut sub = Sub::connect(&endpoint, &[b""], limits).unwrap();
    let event = soon(sub.next()).await;
    assert!(
        matches!(event, SubEvent::Connected { peer: 1, .. }),
        "{event:?}"
    );
    until_quiet(&mut sub, Duration::from_millis(500)).await;
    publisher.send(&["still here"]);
    assert_eq!(message(&mut sub).await, frames(&[b"still here"]));
}
