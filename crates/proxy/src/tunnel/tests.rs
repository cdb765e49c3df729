use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    task::JoinHandle,
};

use super::*;

/// A close frame without a reason.
const CLOSE: [u8; 2] = [0x88, 0];
/// A text frame.
const TEXT: &[u8] = b"\x81\x02hi";

const LIMITS: TunnelLimits = TunnelLimits {
    idle: Duration::from_secs(60),
    total: Duration::from_secs(3600),
};

/// The outer ends of a tunnel, and its result.
struct RunningTunnel {
    client: DuplexStream,
    worker: DuplexStream,
    end: JoinHandle<TunnelEnd>,
}

impl RunningTunnel {
    fn start() -> Self {
        let (client, inner_client) = duplex(64);
        let (worker, inner_worker) = duplex(64);
        Self {
            client,
            worker,
            end: tokio::spawn(carry(inner_client, inner_worker, LIMITS)),
        }
    }

    async fn end(self) -> TunnelEnd {
        self.end.await.expect("no panic")
    }
}

async fn read(stream: &mut DuplexStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.expect("bytes");
    bytes
}

#[tokio::test]
async fn bytes_go_both_ways_until_the_worker_closes_the_conversation() {
    let mut tunnel = RunningTunnel::start();
    tunnel.client.write_all(b"any bytes").await.expect("open");
    assert_eq!(read(&mut tunnel.worker, 9).await, b"any bytes");
    tunnel.worker.write_all(TEXT).await.expect("open");
    assert_eq!(read(&mut tunnel.client, TEXT.len()).await, TEXT);
    tunnel.worker.write_all(&CLOSE).await.expect("open");
    assert_eq!(read(&mut tunnel.client, 2).await, CLOSE);
    tunnel.worker.shutdown().await.expect("open");
    assert_eq!(tunnel.client.read(&mut [0]).await.expect("the end"), 0);
    tunnel.client.shutdown().await.expect("open");
    assert_eq!(tunnel.end().await, TunnelEnd::Closed);
}

#[tokio::test]
async fn a_side_that_ends_its_bytes_gets_the_rest_of_the_others() {
    let mut tunnel = RunningTunnel::start();
    tunnel.client.write_all(b"last").await.expect("open");
    tunnel.client.shutdown().await.expect("open");
    let mut all = Vec::new();
    tunnel.worker.read_to_end(&mut all).await.expect("the end");
    assert_eq!(all, b"last");
    tunnel.worker.write_all(TEXT).await.expect("open");
    tunnel.worker.write_all(&CLOSE).await.expect("open");
    tunnel.worker.shutdown().await.expect("open");
    all.clear();
    tunnel.client.read_to_end(&mut all).await.expect("the end");
    assert_eq!(all, [TEXT, &CLOSE].concat());
    assert_eq!(tunnel.end().await, TunnelEnd::Closed);
}

#[tokio::test]
async fn who_ends_first_without_a_close_frame_decides_what_the_end_was() {
    let mut tunnel = RunningTunnel::start();
    tunnel.worker.write_all(TEXT).await.expect("open");
    tunnel.worker.shutdown().await.expect("open");
    let mut all = Vec::new();
    tunnel.client.read_to_end(&mut all).await.expect("the end");
    assert_eq!(all, TEXT);
    tunnel.client.shutdown().await.expect("open");
    assert_eq!(tunnel.end().await, TunnelEnd::Broken);
    let mut tunnel = RunningTunnel::start();
    tunnel.client.shutdown().await.expect("open");
    assert_eq!(tunnel.worker.read(&mut [0]).await.expect("the end"), 0);
    tunnel.worker.shutdown().await.expect("open");
    assert_eq!(tunnel.end().await, TunnelEnd::ClientGone);
}

#[tokio::test]
async fn a_side_is_read_only_as_far_as_the_other_one_reads() {
    let mut tunnel = RunningTunnel::start();
    let flood = vec![7; 1024 * 1024];
    // The tunnel's buffer, and those of the two streams of this test.
    let most = BUFFER + 2 * 64;
    let mut written = 0;
    while let Ok(result) =
        tokio::time::timeout(Duration::from_millis(50), tunnel.worker.write(&flood)).await
    {
        written += result.expect("open");
    }
    assert!((64..=most).contains(&written), "{written}");
    assert_eq!(read(&mut tunnel.client, written).await, vec![7; written]);
    assert!(tunnel.worker.write(&flood).await.expect("open") > 0);
}

#[tokio::test(start_paused = true)]
async fn a_silent_tunnel_ends_by_its_idle_limit_and_a_byte_of_either_side_begins_it_anew() {
    let mut tunnel = RunningTunnel::start();
    let started = Instant::now();
    for _ in 0..3 {
        tokio::time::sleep(LIMITS.idle / 2).await;
        tunnel.client.write_all(b"x").await.expect("open");
        read(&mut tunnel.worker, 1).await;
        tokio::time::sleep(LIMITS.idle / 2).await;
        tunnel.worker.write_all(b"x").await.expect("open");
        read(&mut tunnel.client, 1).await;
    }
    assert_eq!(tunnel.end().await, TunnelEnd::Idle);
    assert!(started.elapsed() >= LIMITS.idle * 4);
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_that_is_never_silent_ends_by_its_total_limit() {
    let RunningTunnel {
        mut client,
        mut worker,
        mut end,
    } = RunningTunnel::start();
    let talking = async {
        loop {
            tokio::time::sleep(Duration::from_secs(10)).await;
            if client.write_all(b"x").await.is_err() {
                return;
            }
            read(&mut worker, 1).await;
        }
    };
    let ended = tokio::select! {
        ended = &mut end => ended,
        () = talking => panic!("it closed before its end"),
    };
    assert_eq!(ended.expect("no panic"), TunnelEnd::TooLong);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stays_after_the_workers_end_is_not_waited_for() {
    let mut tunnel = RunningTunnel::start();
    let started = Instant::now();
    tunnel.worker.shutdown().await.expect("open");
    assert_eq!(tunnel.client.read(&mut [0]).await.expect("the end"), 0);
    assert_eq!(tunnel.end.await.expect("no panic"), TunnelEnd::Broken);
    assert!(started.elapsed() < LIMITS.idle);
    drop(tunnel.client);
}
