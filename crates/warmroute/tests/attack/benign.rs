//! Benign traffic that costs the router as much CPU as the attack; the baseline for the honest
//! client.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    time::sleep,
};

use crate::{
    cores,
    harness::{chat, streamed},
};

/// Clients, each with one request at a time.
const CLIENTS: usize = 32;
/// Initial requests a second of all clients together.
const FIRST_RATE: u64 = 50;
const LOWEST_RATE: u64 = 1;
const HIGHEST_RATE: u64 = 5_000;

/// Running clients of a model with enough capacity.
pub(crate) struct BenignClients {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
    rate: Arc<AtomicU64>,
}

impl BenignClients {
    pub(crate) fn start(data: &str, model: &str) -> Self {
        let to: SocketAddr = data.parse().expect("an address");
        let rate = Arc::new(AtomicU64::new(FIRST_RATE));
        let (stop, stopped) = oneshot::channel();
        let (paced, model) = (Arc::clone(&rate), model.to_owned());
        let thread = std::thread::spawn(move || {
            cores::become_background_load();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                for number in 0..CLIENTS {
                    tokio::spawn(client(to, model.clone(), number, Arc::clone(&paced)));
                }
                let _ = stopped.await;
            });
        });
        Self { stop, thread, rate }
    }

    /// Steers the rate towards this CPU share of the router (1.0: a whole core).
    pub(crate) fn control(&self, cpu_share: f64) -> RateControl {
        RateControl {
            wanted: cpu_share,
            rate: Arc::clone(&self.rate),
        }
    }

    pub(crate) fn stop(self) {
        let _ = self.stop.send(());
        self.thread.join().expect("the benign clients end");
    }
}

/// Adjusts the rate until the router's CPU share is the wanted one.
pub(crate) struct RateControl {
    wanted: f64,
    rate: Arc<AtomicU64>,
}

impl RateControl {
    /// Takes the CPU share since the last call; called regularly.
    pub(crate) fn adjust(&mut self, cpu_share: f64) {
        let step = (self.wanted / cpu_share.max(1e-3)).clamp(0.5, 2.0);
        let rate = self.rate.load(Ordering::Relaxed) as f64 * step;
        self.rate.store(
            (rate as u64).clamp(LOWEST_RATE, HIGHEST_RATE),
            Ordering::Relaxed,
        );
    }
}

/// Sends new prompts over one connection at the current rate.
async fn client(to: SocketAddr, model: String, number: usize, rate: Arc<AtomicU64>) {
    let mut stream: Option<TcpStream> = None;
    for turn in 0.. {
        let pause = CLIENTS as f64 / rate.load(Ordering::Relaxed).max(1) as f64;
        sleep(Duration::from_secs_f64(pause)).await;
        let text = format!("client {number}, turn {turn}: {}", "word ".repeat(40));
        let body = streamed(chat(&model, &text, 4)).to_string();
        let open = match stream.take() {
            Some(open) => Ok(open),
            None => TcpStream::connect(to).await,
        };
        if let Ok(mut open) = open
            && send(&mut open, &body).await.is_ok()
        {
            stream = Some(open);
        }
    }
}

/// Sends a chat and reads the stream to its last chunk.
async fn send(stream: &mut TcpStream, body: &str) -> std::io::Result<()> {
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    let (mut bytes, mut tail) = ([0; 4096], Vec::new());
    loop {
        let count = stream.read(&mut bytes).await?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        tail.extend_from_slice(&bytes[..count]);
        if tail.ends_with(b"\r\n0\r\n\r\n") {
            return Ok(());
        }
        // The end of a chunked body is seven bytes.
        tail.drain(..tail.len().saturating_sub(7));
    }
}
