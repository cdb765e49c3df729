//! Admission of connections to a listener, and which ones close to make room.

use std::{
    io::Write as _,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use contract_id::contract;
use futures::{TestConnection, admitted, is_pending};
use net::server::{
    Acceptor, ClientStream, ConnectionTable, ExchangeTracker, HttpVersion, PeerAddress,
};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const ONE: PeerAddress = PeerAddress::V4(Ipv4Addr::new(10, 0, 0, 1));
const OTHER: PeerAddress = PeerAddress::V4(Ipv4Addr::new(10, 0, 0, 2));

/// Scripted connections, and futures that are polled once.
mod futures {
    use std::{
        pin::pin,
        sync::Arc,
        task::{Context, Poll, Waker},
    };

    use net::server::{ConnectionSlot, ConnectionTable, PeerAddress};
    use tokio::task::JoinHandle;

    /// A connection that closes on request.
    pub(crate) struct TestConnection {
        pub(crate) slot: Arc<ConnectionSlot>,
        task: JoinHandle<()>,
    }

    impl TestConnection {
        fn new(slot: ConnectionSlot) -> Self {
            let slot = Arc::new(slot);
            let own = Arc::downgrade(&slot);
            // The place is free when its last owner is dropped: this task or the test.
            let task = tokio::spawn(async move {
                if let Some(slot) = own.upgrade() {
                    slot.must_close().await;
                }
            });
            Self { slot, task }
        }

        /// Waits for the request to close, and closes.
        pub(crate) async fn closes(self) {
            self.task.await.unwrap();
        }

        pub(crate) fn close_requested(&self) -> bool {
            self.task.is_finished()
        }
    }

    /// Takes a place that must be free at once.
    pub(crate) async fn admitted(
        table: &Arc<ConnectionTable>,
        peer: PeerAddress,
    ) -> TestConnection {
        let slot = table.admit(peer).await.unwrap();
        let connection = TestConnection::new(slot);
        tokio::task::yield_now().await;
        connection
    }

    pub(crate) fn is_pending(future: impl Future) -> bool {
        matches!(
            pin!(future).poll(&mut Context::from_waker(Waker::noop())),
            Poll::Pending
        )
    }
}

async fn filled(
    table: &Arc<ConnectionTable>,
    peer: PeerAddress,
    count: usize,
) -> Vec<TestConnection> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(admitted(table, peer).await);
    }
    all
}

#[tokio::test]
#[contract("S33")]
async fn the_longest_idle_connection_closes_and_never_one_with_a_request() {
    let table = ConnectionTable::new(4);
    let mut all = filled(&table, ONE, 4).await;
    all[0].slot.set_busy();
    all[1].slot.set_busy();
    all[1].slot.set_idle();
    let second = table.admit(OTHER);
    let (third, _) = tokio::join!(second, all.remove(2).closes());
    let third = third.unwrap();
    third.set_busy();
    let (fourth, _) = tokio::join!(table.admit(OTHER), all.remove(2).closes());
    fourth.as_ref().unwrap().set_busy();
    let (fifth, _) = tokio::join!(table.admit(OTHER), all.remove(1).closes());
    fifth.as_ref().unwrap().set_busy();
    assert!(is_pending(table.has_capacity()), "all have requests");
    assert!(is_pending(table.admit(OTHER)));
    assert!(!all[0].close_requested());
    all[0].slot.set_idle();
    assert!(!is_pending(table.has_capacity()));
}

#[tokio::test]
#[contract("S33")]
async fn a_connection_whose_request_arrives_before_the_close_stays() {
    let table = ConnectionTable::new(2);
    let (first, second) = (
        table.admit(ONE).await.unwrap(),
        table.admit(ONE).await.unwrap(),
    );
    let admission = table.admit(OTHER);
    tokio::pin!(admission);
    assert!(is_pending(admission.as_mut()));
    first.set_busy();
    assert!(is_pending(first.must_close()), "its request is in progress");
    assert!(is_pending(admission.as_mut()));
    second.must_close().await;
    drop(second);
    assert!(admission.await.is_some());
}

#[tokio::test]
#[contract("S33")]
async fn one_address_cannot_take_all_places() {
    let table = ConnectionTable::new(16);
    let all = filled(&table, ONE, 16).await;
    let mut turns = Vec::new();
    for connection in &all[..14] {
        turns.push(connection.slot.acquire_request_slot().await.unwrap());
        connection.slot.set_busy();
    }
    // Two more connections have waiting requests.
    all[14..]
        .iter()
        .for_each(|connection| connection.slot.set_idle());
    assert!(
        is_pending(all[14].slot.acquire_request_slot())
            && is_pending(all[15].slot.acquire_request_slot())
    );
    let mut others = Vec::new();
    let mut all = all;
    for waits in all.split_off(14) {
        let (slot, ()) = tokio::join!(table.admit(OTHER), waits.closes());
        let slot = slot.unwrap();
        assert!(
            !is_pending(slot.acquire_request_slot()),
            "the other address is not delayed"
        );
        slot.set_busy();
        others.push(slot);
    }
    drop(others.pop());
    let again = table.admit(ONE).await.unwrap();
    assert!(is_pending(again.acquire_request_slot()));
    turns.pop();
    assert!(again.acquire_request_slot().await.is_some());
}

#[tokio::test]
async fn an_address_at_its_share_takes_no_place_of_another() {
    let table = ConnectionTable::new(16);
    let busy = filled(&table, ONE, 14).await;
    busy.iter()
        .for_each(|connection| connection.slot.set_busy());
    let idle = filled(&table, OTHER, 2).await;
    assert!(table.admit(ONE).await.is_none());
    assert!(idle.iter().all(|connection| !connection.close_requested()));
    // An address with most of the places does not keep its idle ones either.
    busy[3].slot.set_idle();
    let mut busy = busy;
    let (slot, ()) = tokio::join!(table.admit(OTHER), busy.remove(3).closes());
    assert!(slot.is_some());
}

/// A connection over loopback: its client, and what the listener has of it.
async fn connected(head_timeout: Duration) -> (TcpStream, ClientStream, ExchangeTracker) {
    let listener = net::listen(&net::ListenAddr::tcp("127.0.0.1", 0))
        .await
        .unwrap();
    let address = listener.address().to_string();
    let mut acceptor = Acceptor::new(listener, 4);
    let (client, (stream, slot)) = tokio::join!(TcpStream::connect(address), acceptor.next());
    let (stream, exchange) = ClientStream::new(stream, slot, head_timeout, Duration::from_secs(60));
    (client.unwrap(), stream, exchange)
}

#[tokio::test]
#[contract("S33")]
async fn a_silent_connection_closes_after_the_head_timeout() {
    let (client, mut stream, exchange) = connected(Duration::from_millis(50)).await;
    let error = stream.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    drop((client, exchange));
}

/// Else the HTTP layer would double its buffer for what follows.
#[tokio::test]
async fn the_bytes_that_show_the_version_are_read_together_with_what_follows() {
    let request = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
    let (mut client, mut stream, _exchange) = connected(Duration::from_secs(60)).await;
    client.write_all(request).await.unwrap();
    assert_eq!(stream.http_version().await.unwrap(), HttpVersion::Http1);
    let mut bytes = [0; 1024];
    let length = stream.read(&mut bytes).await.unwrap();
    assert_eq!(&bytes[..length], request);
}

/// A reset is visible to the accepting side before it accepts.
#[tokio::test]
#[contract("S18")]
async fn a_connection_that_was_reset_before_it_is_accepted_counts_as_no_one() {
    let listener = net::listen(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.address().to_string();
    let mut acceptor = Acceptor::new(Arc::new(listener), 8);
    let mut gone = std::net::TcpStream::connect(&address).unwrap();
    gone.write_all(b"POST / HTTP/1.1\r\n\r\n").unwrap();
    sockopt::set_socket_linger(&gone, Some(Duration::ZERO)).unwrap();
    drop(gone);
    let client = std::net::TcpStream::connect(&address).unwrap();
    let (stream, slot) = acceptor.next().await;
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    assert_eq!(
        (slot.address(), slot.peer()),
        (Some(here), PeerAddress::of(here))
    );
    assert_eq!(
        stream.peer_addr(),
        client.local_addr().ok(),
        "the second one"
    );
}

#[tokio::test]
#[contract("S18")]
async fn only_a_unix_socket_counts_as_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let listener = net::listen(&net::ListenAddr::unix(path.clone()))
        .await
        .unwrap();
    let mut acceptor = Acceptor::new(Arc::new(listener), 8);
    let _client = std::os::unix::net::UnixStream::connect(path).unwrap();
    let (_stream, slot) = acceptor.next().await;
    assert_eq!((slot.address(), slot.peer()), (None, PeerAddress::Local));
}
