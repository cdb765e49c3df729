//! Peers of a bound socket that send nothing, or only incomplete messages.

use std::time::Duration;

use contract_id::contract;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use zmtp::{Endpoint, Limits, Pub, PubSettings, ReceiveBudget, Sub, SubEvent};

/// Time limit of a wait; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap()
}

async fn bound(limits: Limits) -> (Sub, Endpoint) {
    Sub::bind(&"tcp://127.0.0.1:0".parse().unwrap(), &[b""], limits)
        .await
        .unwrap()
}

/// Connects to the endpoint and sends a publisher's greeting and READY.
async fn greeted(endpoint: &Endpoint) -> TcpStream {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    bytes.extend_from_slice(b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB");
    let mut stream = TcpStream::connect(endpoint.to_string().trim_start_matches("tcp://"))
        .await
        .unwrap();
    stream.write_all(&bytes).await.unwrap();
    stream
}

/// Reads events until this many peers are connected.
async fn until_connected(sub: &mut Sub, peers: usize) {
    for _ in 0..peers {
        let event = soon(sub.next()).await;
        assert!(matches!(event, SubEvent::Connected { .. }), "{event:?}");
    }
}

/// Returns the length of the next message's second frame, and the number of peers disconnected
/// before it.
async fn message(sub: &mut Sub) -> (usize, usize) {
    let mut gone = 0;
    loop {
        match soon(sub.next()).await {
            SubEvent::Message { frames, .. } => return (frames[1].len(), gone),
            SubEvent::Disconnected { .. } => gone += 1,
            _ => {}
        }
    }
}

async fn publisher(endpoint: &Endpoint, sub: &mut Sub) -> Pub {
    let publisher = Pub::connect(endpoint, PubSettings::default()).unwrap();
    let mut subscribers = publisher.watch_subscribers();
    let subscribed = subscribers.wait_for(|count| *count == 1);
    tokio::pin!(subscribed);
    loop {
        tokio::select! {
            known = soon(&mut subscribed) => { known.unwrap(); break }
            _ = sub.next() => {}
        }
    }
    publisher
}

#[tokio::test]
#[contract("S79")]
async fn silent_peers_do_not_lock_out_a_publisher() {
    let (mut sub, endpoint) = bound(Limits {
        max_peers: 16,
        ..Limits::default()
    })
    .await;
    let mut silent = Vec::new();
    for _ in 0..16 {
        silent.push(greeted(&endpoint).await);
    }
    until_connected(&mut sub, 16).await;
    let publisher = publisher(&endpoint, &mut sub).await;
    // The publisher sends, so later peers displace others.
    publisher.send(&["topic", "first"]);
    assert_eq!(message(&mut sub).await.0, 5);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    publisher.send(&["topic", "second"]);
    assert_eq!(message(&mut sub).await.0, 6);
    for _ in 0..15 {
        silent.push(greeted(&endpoint).await);
    }
    let mut displaced = 0;
    while displaced < 15 {
        if let SubEvent::Disconnected { reason, .. } = soon(sub.next()).await {
            assert!(
                reason.contains("had sent nothing for the longest time"),
                "{reason}"
            );
            displaced += 1;
        }
    }
    publisher.send(&["topic", "the third"]);
    assert_eq!(message(&mut sub).await, (9, 0));
}

#[tokio::test]
#[contract("S79")]
async fn incomplete_messages_of_all_peers_share_one_bound() {
    let limits = Limits {
        max_message: MIB,
        receive_budget: ReceiveBudget::new(4 * MIB),
        ..Limits::default()
    };
    let (mut sub, endpoint) = bound(limits).await;
    let mut peers = Vec::new();
    for _ in 0..12 {
        let mut peer = greeted(&endpoint).await;
        // An incomplete long frame. The socket may have closed meanwhile.
        let mut frame = vec![0x02];
        frame.extend_from_slice(&(MIB as u64).to_be_bytes());
        frame.resize(frame.len() + 900 * 1024, 7);
        let _ = peer.write_all(&frame).await;
        peers.push(peer);
    }
    let mut gone = 0;
    // Four of them have 3.3 MiB that count; a fifth exceeds the budget.
    while gone < 8 {
        if let SubEvent::Disconnected { reason, .. } = soon(sub.next()).await {
            assert!(
                reason.contains("incomplete messages of all peers"),
                "{reason}"
            );
            gone += 1;
        }
    }
    let publisher = publisher(&endpoint, &mut sub).await;
    for size in [10, 10_000, MIB / 2, MIB / 2] {
        publisher.send(&[b"topic".to_vec(), vec![1; size]]);
        assert_eq!(message(&mut sub).await.0, size);
    }
    let mut open = 0;
    for peer in &mut peers {
        // Greeting, READY and a subscription always arrive.
        let mut bytes = Vec::new();
        let ended =
            tokio::time::timeout(Duration::from_millis(50), peer.read_to_end(&mut bytes)).await;
        open += usize::from(ended.is_err());
    }
    assert!((1..=4).contains(&open), "{open} are left");
}
