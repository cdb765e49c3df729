//! The pauses between connections to a stream, as its server sees them.
//!
//! The minute-long pauses pass in simulated time, with the source and its sockets unchanged.

use std::time::Duration;

use contract_id::contract;
use net::{ListenAddr, Listener, Stream};
use runtime::SimulatedWorld;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, sleep},
};

use crate::stream_server::{HEAD, StreamServer, Watcher};

/// Most jitter, as a share of a pause.
const JITTER: f64 = 0.1;
const LONGEST: Duration = Duration::from_secs(60);

/// A stream's server in simulated time.
struct SimulatedServer {
    listener: Listener,
    last_end: Option<Instant>,
}

impl SimulatedServer {
    async fn bind() -> Self {
        let address = ListenAddr::tcp("127.0.0.1", 0);
        Self {
            listener: net::listen(&address).await.unwrap(),
            last_end: None,
        }
    }

    fn url(&self) -> String {
        let port = self.listener.address().port().unwrap();
        format!("http://127.0.0.1:{port}/v1/kv_events")
    }

    /// The next connection, its request read, and the pause since the end of the one before.
    async fn accept(&mut self) -> (Stream, Duration) {
        let mut stream = self.listener.accept().await.unwrap();
        let since = self.last_end.map(|end| end.elapsed()).unwrap_or_default();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        (stream, since)
    }

    /// Breaks off the next connection without a reply; returns the pause before it.
    async fn refuse(&mut self) -> Duration {
        let (stream, since) = self.accept().await;
        drop(stream);
        self.last_end = Some(Instant::now());
        since
    }

    /// Keeps the next connection for `lasting`, then ends the stream cleanly; returns the pause
    /// before it.
    async fn serve(&mut self, lasting: Duration) -> Duration {
        let (mut stream, since) = self.accept().await;
        stream.write_all(HEAD).await.unwrap();
        let begun = Instant::now();
        while begun.elapsed() < lasting {
            stream.write_all(b": a comment\n\n").await.unwrap();
            sleep((lasting - begun.elapsed()).min(Duration::from_secs(5))).await;
        }
        stream.shutdown().await.unwrap();
        self.last_end = Some(Instant::now());
        since
    }
}

fn assert_pause(pause: Duration, expected: u64) {
    let expected = Duration::from_secs(expected);
    let longest = expected.mul_f64(1.0 + JITTER).min(LONGEST);
    // Timers of tokio end on whole milliseconds.
    assert!(
        pause >= expected && pause <= longest + Duration::from_millis(2),
        "{pause:?}, expected {expected:?} to {longest:?}"
    );
}

#[tokio::test(start_paused = true)]
#[contract("A3", "CK42", "CK48")]
async fn the_pauses_grow_to_a_minute_and_only_a_healthy_minute_resets_them() {
    let _simulation = SimulatedWorld::enter(7);
    let mut server = SimulatedServer::bind().await;
    // The default of the configuration.
    let interval = Duration::from_secs(5);
    let watcher = Watcher::with(&server.url(), |spec| spec.reconnect_interval = interval);
    server.refuse().await;
    for expected in [1, 5, 10, 20, 40, 60, 60] {
        assert_pause(server.refuse().await, expected);
    }
    assert_pause(server.serve(Duration::from_secs(50)).await, 60);
    // A shorter connection that ended cleanly resets nothing.
    assert_pause(server.serve(Duration::from_secs(61)).await, 60);
    for expected in [1, 5, 10] {
        assert_pause(server.refuse().await, expected);
    }
    watcher.source.stop().await;
}

#[tokio::test]
#[contract("CK48")]
async fn the_pauses_between_real_connections_double() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&server.url());
    drop(server.next_request().await);
    // The pauses of an interval of 20 ms; each is a lower bound, however busy the machine is.
    for expected in [20, 40, 80, 160, 320] {
        let ended = Instant::now();
        drop(server.next_request().await);
        let pause = ended.elapsed();
        // The source may see the end a moment before this test has taken the time.
        let least = Duration::from_millis(expected - expected / 10);
        assert!(pause >= least, "{pause:?}, expected {expected} ms");
    }
    watcher.source.stop().await;
}
