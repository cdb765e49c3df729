//! The hostile clients. Each kind uses its own loopback address, like hosts of a network.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::oneshot,
    time::sleep,
};

use crate::{
    cores,
    harness::{chat, streamed},
};

/// Connections that announce or slowly send a body of [`BODY_BYTES`].
const BODIES: usize = 64;
const BODY_BYTES: usize = 32 << 20;
/// Pause between two bytes of a slow body.
const DRIP: Duration = Duration::from_millis(200);
/// Connections that never send a byte, at each of the two listeners.
const SILENT: usize = 256;
const SILENT_AT_ADMIN: usize = 64;
/// Requests that wait for the saturated model at any time.
const QUEUED: usize = 2_000;
/// Clients of the hostile engine.
const HOSTILE: usize = 4;
/// Pause before an attacker reconnects after it was cut off.
const COME_BACK: Duration = Duration::from_millis(250);

/// Runs every attack at once, on its own thread.
pub(crate) struct Attack {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    counts: Arc<AttackCounts>,
}

/// Counts the attackers' work, as proof that an attack took place.
#[derive(Debug, Default)]
pub(crate) struct AttackCounts {
    pub(crate) bodies: AtomicU64,
    pub(crate) silent: AtomicU64,
    pub(crate) saturating: AtomicU64,
    pub(crate) hostile: AtomicU64,
}

/// The attacked listeners and models.
#[derive(Clone, Debug)]
struct Victims {
    data: SocketAddr,
    admin: SocketAddr,
    saturated: String,
    hostile: String,
}

impl Attack {
    pub(crate) fn start(data: &str, admin: &str, saturated: &str, hostile: &str) -> Self {
        let victims = Victims {
            data: data.parse().expect("an address"),
            admin: admin.parse().expect("an address"),
            saturated: saturated.to_owned(),
            hostile: hostile.to_owned(),
        };
        let counts = Arc::new(AttackCounts::default());
        let (stop, stopped) = oneshot::channel();
        let counted = Arc::clone(&counts);
        let thread = std::thread::spawn(move || {
            cores::become_background_load();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                spawn_all(&victims, &counted);
                let _ = stopped.await;
            });
            // Dropping the runtime closes every connection.
        });
        Self {
            stop,
            thread,
            counts,
        }
    }

    /// Ends every attack and returns the counts.
    pub(crate) fn stop(self) -> Arc<AttackCounts> {
        let _ = self.stop.send(());
        self.thread.join().expect("the attackers end");
        self.counts
    }
}

fn spawn_all(victims: &Victims, counts: &Arc<AttackCounts>) {
    for number in 0..BODIES {
        tokio::spawn(body(victims.data, number % 2 == 0, Arc::clone(counts)));
    }
    for _ in 0..SILENT {
        tokio::spawn(silence(victims.data, Arc::clone(counts)));
    }
    for _ in 0..SILENT_AT_ADMIN {
        tokio::spawn(silence(victims.admin, Arc::clone(counts)));
    }
    for number in 0..QUEUED {
        tokio::spawn(saturate(victims.clone(), number, Arc::clone(counts)));
    }
    for number in 0..HOSTILE {
        tokio::spawn(send_hostile(victims.clone(), number, Arc::clone(counts)));
    }
}

/// Connects from `127.0.0.host`.
async fn connect(to: SocketAddr, host: u8) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    socket
        .bind((Ipv4Addr::new(127, 0, 0, host), 0).into())
        .ok()?;
    socket.connect(to).await.ok()
}

/// Announces a large body and sends nothing of it, or one byte at a time.
async fn body(to: SocketAddr, drips: bool, counts: Arc<AttackCounts>) {
    loop {
        if let Some(mut stream) = connect(to, 2).await {
            counts.bodies.fetch_add(1, Ordering::Relaxed);
            let head = format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {BODY_BYTES}\r\n\r\n{{"
            );
            if stream.write_all(head.as_bytes()).await.is_ok() {
                let (mut reads, mut writes) = stream.into_split();
                let mut answer = [0; 1024];
                tokio::select! {
                    _ = reads.read(&mut answer) => {}
                    () = drip(&mut writes), if drips => {}
                }
            }
        }
        sleep(COME_BACK).await;
    }
}

async fn drip(into: &mut (impl AsyncWriteExt + Unpin)) {
    while into.write_all(b" ").await.is_ok() {
        sleep(DRIP).await;
    }
}

/// Connects and sends nothing until the router closes.
async fn silence(to: SocketAddr, counts: Arc<AttackCounts>) {
    loop {
        if let Some(mut stream) = connect(to, 3).await {
            counts.silent.fetch_add(1, Ordering::Relaxed);
            let _ = stream.read(&mut [0; 64]).await;
        }
        sleep(COME_BACK).await;
    }
}

/// Sends one of the requests that wait for a model with far too little capacity.
async fn saturate(victims: Victims, number: usize, counts: Arc<AttackCounts>) {
    // The first requests arrive within two seconds instead of in one burst.
    sleep(Duration::from_millis(number as u64)).await;
    for turn in 0.. {
        let text = format!("client {number}, turn {turn}: {}", "word ".repeat(40));
        send(
            victims.data,
            4,
            &streamed(chat(&victims.saturated, &text, 4)).to_string(),
        )
        .await;
        counts.saturating.fetch_add(1, Ordering::Relaxed);
        sleep(COME_BACK).await;
    }
}

/// A client of the hostile engine; the router applies the engine's template and tokenizer to its
/// chats.
async fn send_hostile(victims: Victims, number: usize, counts: Arc<AttackCounts>) {
    for turn in 0.. {
        let text = format!(
            "client {number}, turn {turn}: {}",
            "aaaaaaaaaa ".repeat(3_000)
        );
        send(
            victims.data,
            5,
            &chat(&victims.hostile, &text, 4).to_string(),
        )
        .await;
        counts.hostile.fetch_add(1, Ordering::Relaxed);
        sleep(COME_BACK).await;
    }
}

/// Sends a chat and reads until the router closes.
async fn send(to: SocketAddr, host: u8, body: &str) {
    let Some(mut stream) = connect(to, host).await else {
        return;
    };
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    if stream.write_all(head.as_bytes()).await.is_ok() {
        let mut bytes = [0; 4096];
        while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {}
    }
}
