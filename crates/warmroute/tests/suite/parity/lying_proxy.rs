//! A proxy before an engine that reports only a share of its cached tokens.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::harness::RawClient;

/// The proxy. Dropping it closes its listener.
pub(crate) struct LyingProxy {
    address: String,
    shared: Arc<LyingProxyState>,
}

struct LyingProxyState {
    engine: String,
    percent: AtomicU64,
    stop: AtomicBool,
}

impl LyingProxy {
    /// A proxy in front of the engine at this address; it is truthful at first.
    pub(crate) fn before(engine: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let shared = Arc::new(LyingProxyState {
            engine,
            percent: AtomicU64::new(100),
            stop: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if own.stop.load(Ordering::SeqCst) {
                    break;
                }
                let shared = Arc::clone(&own);
                std::thread::spawn(move || while_open(BufReader::new(stream), &shared));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Reports this percentage of the cached tokens from now on.
    pub(crate) fn report_share(&self, percent: u64) {
        self.shared.percent.store(percent, Ordering::SeqCst);
    }
}

impl Drop for LyingProxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Wakes the listening thread.
        let _ = TcpStream::connect(&self.address);
    }
}

fn while_open(mut client: BufReader<TcpStream>, shared: &LyingProxyState) {
    while let Some(request) = read_request(&mut client) {
        let mut engine = RawClient::connect(&shared.engine);
        engine.send_bytes(&request);
        let reply = engine.reply();
        let percent = shared.percent.load(Ordering::SeqCst);
        let body = with_share(&reply.text(), percent);
        let mut head = format!(
            "HTTP/1.1 {} X\r\ncontent-length: {}\r\n",
            reply.status,
            body.len()
        )
        .into_bytes();
        for (name, value) in &reply.headers {
            if !["content-length", "transfer-encoding", "connection"].contains(&name.as_str()) {
                head.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
            }
        }
        if client
            .get_mut()
            .write_all(&[&head[..], b"\r\n", body.as_bytes()].concat())
            .is_err()
        {
            return;
        }
    }
}

fn read_request(client: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let (mut request, mut length) = (Vec::new(), 0);
    loop {
        let before = request.len();
        client
            .read_until(b'\n', &mut request)
            .ok()
            .filter(|n| *n > 0)?;
        let line = String::from_utf8_lossy(&request[before..]).to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    client.read_exact(&mut body).ok()?;
    request.extend(body);
    Some(request)
}

fn with_share(body: &str, percent: u64) -> String {
    const KEY: &str = "\"cached_tokens\":";
    let Some((before, after)) = body.split_once(KEY) else {
        return body.to_owned();
    };
    let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let cached: u64 = after[..digits].parse().expect("a number of tokens");
    format!(
        "{before}{KEY}{}{}",
        cached * percent / 100,
        &after[digits..]
    )
}
