//! A TCP proxy that knows ZMTP message boundaries and injects faults.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use event_sources::Endpoint;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use super::random::SplitMix64;

/// The faults of messages from the engine, in percent. Cuts are in the middle of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) lost: usize,
    pub(crate) doubled: usize,
    pub(crate) late: usize,
    pub(crate) cut: usize,
    /// Percentage of connections that are closed at once.
    pub(crate) refused: usize,
    /// Percentage of connections that have a twin, which is never read.
    pub(crate) twins: usize,
}

pub(crate) struct FaultyProxy {
    pub(crate) endpoint: Endpoint,
    shared: Arc<ProxyState>,
    task: JoinHandle<()>,
}

struct ProxyState {
    faults: Faults,
    upstream: Mutex<SocketAddr>,
    storming: AtomicBool,
    /// Incremented to end all connections.
    cuts: watch::Sender<u64>,
    done: AtomicU64,
}

impl FaultyProxy {
    pub(crate) async fn start(upstream: &Endpoint, faults: Faults, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let shared = Arc::new(ProxyState {
            faults,
            upstream: Mutex::new(address(upstream)),
            storming: AtomicBool::new(true),
            cuts: watch::Sender::new(0),
            done: AtomicU64::new(0),
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared), SplitMix64::new(seed)));
        Self {
            endpoint,
            shared,
            task,
        }
    }

    /// Sets the engine's new address.
    pub(crate) fn moved(&self, upstream: &Endpoint) {
        *self.shared.upstream.lock() = address(upstream);
        self.cut();
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// `false` stops all faults of messages and connections.
    pub(crate) fn storm(&self, storming: bool) {
        self.shared.storming.store(storming, Ordering::Relaxed);
    }

    /// Number of faults so far.
    pub(crate) fn faults(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ProxyState {
    /// Draws an event of this probability; counts it as a fault.
    fn hits(&self, dice: &mut SplitMix64, percent: usize) -> bool {
        let hits = dice.chance(percent) && self.storming.load(Ordering::Relaxed);
        self.done.fetch_add(u64::from(hits), Ordering::Relaxed);
        hits
    }
}

fn address(endpoint: &Endpoint) -> SocketAddr {
    endpoint
        .to_string()
        .strip_prefix("tcp://")
        .unwrap()
        .parse()
        .unwrap()
}

async fn serve(listener: TcpListener, shared: Arc<ProxyState>, mut dice: SplitMix64) {
    // Its connections end with this task.
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        while connections.try_join_next().is_some() {}
        if shared.hits(&mut dice, shared.faults.refused) {
            continue;
        }
        let (shared, dice) = (Arc::clone(&shared), SplitMix64::new(dice.roll()));
        connections.spawn(async move {
            let mut cuts = shared.cuts.subscribe();
            tokio::select! {
                // An error ends the connection.
                _ = carry(client, &shared, dice) => {}
                _ = cuts.changed() => {}
            }
        });
    }
}

async fn carry(
    client: TcpStream,
    shared: &ProxyState,
    mut dice: SplitMix64,
) -> std::io::Result<()> {
    let upstream = *shared.upstream.lock();
    let (from_client, to_client) = tokio::io::split(client);
    let (from_engine, to_engine) = tokio::io::split(TcpStream::connect(upstream).await?);
    let twin = if shared.hits(&mut dice, shared.faults.twins) {
        Some(TcpStream::connect(upstream).await?)
    } else {
        None
    };
    tokio::select! {
        ended = copy_to_engine(from_client, to_engine, twin) => ended,
        ended = copy_from_engine(from_engine, to_client, shared, dice) => ended,
    }
}

/// Copies from the reader to the engine and to the twin.
async fn copy_to_engine(
    mut client: ReadHalf<TcpStream>,
    mut engine: WriteHalf<TcpStream>,
    mut twin: Option<TcpStream>,
) -> std::io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let read = client.read(&mut bytes).await?;
        if read == 0 {
            return Ok(());
        }
        engine.write_all(&bytes[..read]).await?;
        if let Some(twin) = &mut twin {
            twin.write_all(&bytes[..read]).await?;
        }
    }
}

/// Copies from the engine to the reader, message by message.
async fn copy_from_engine(
    mut engine: ReadHalf<TcpStream>,
    mut client: WriteHalf<TcpStream>,
    shared: &ProxyState,
    mut dice: SplitMix64,
) -> std::io::Result<()> {
    let mut greeting = [0; 64];
    engine.read_exact(&mut greeting).await?;
    client.write_all(&greeting).await?;
    loop {
        let (message, is_command) = read_message(&mut engine).await?;
        let faults = if is_command {
            Faults {
                lost: 0,
                doubled: 0,
                ..shared.faults
            }
        } else {
            shared.faults
        };
        if shared.hits(&mut dice, faults.late) {
            tokio::time::sleep(Duration::from_millis(dice.roll() % 40)).await;
        }
        if shared.hits(&mut dice, faults.cut) {
            return client
                .write_all(&message[..dice.below(message.len())])
                .await;
        }
        if shared.hits(&mut dice, faults.lost) {
            continue;
        }
        client.write_all(&message).await?;
        if shared.hits(&mut dice, faults.doubled) {
            client.write_all(&message).await?;
        }
    }
}

/// Reads all frames of a message, or one command.
async fn read_message(engine: &mut ReadHalf<TcpStream>) -> std::io::Result<(Vec<u8>, bool)> {
    const MORE: u8 = 1;
    const LONG: u8 = 2;
    const COMMAND: u8 = 4;
    let mut message = Vec::new();
    loop {
        let flags = engine.read_u8().await?;
        message.push(flags);
        let length = if flags & LONG == 0 {
            let length = engine.read_u8().await?;
            message.push(length);
            u64::from(length)
        } else {
            let length = engine.read_u64().await?;
            message.extend_from_slice(&length.to_be_bytes());
            length
        };
        engine.take(length).read_to_end(&mut message).await?;
        if flags & MORE == 0 {
            return Ok((message, flags & COMMAND != 0));
        }
    }
}
