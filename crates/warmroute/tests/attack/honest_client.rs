//! The honest client: one small request after another over one connection, to a model that is not
//! attacked.
//!
//! Every second request goes to the model's engine directly, over a separate connection. That shows
//! which part of a latency is the engine's, which shares its core with the attackers.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::{
    cores::{self, Core},
    harness::{Stopwatch, chat, eventually},
};

/// Pause between the end of one request and the start of the next.
const PAUSE: Duration = Duration::from_millis(10);
/// A request that takes longer counts as lost.
const LIMIT: Duration = Duration::from_secs(10);

/// The outcomes of the client's requests.
#[derive(Debug, Default)]
pub(crate) struct ClientResults {
    pub(crate) routed: Vec<Result<Duration, String>>,
    /// Latencies of the engine without the router.
    pub(crate) direct: Vec<Duration>,
}

/// A running client. It collects results until they are taken.
pub(crate) struct HonestClient {
    results: Arc<Mutex<ClientResults>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HonestClient {
    /// `router` and `engine` are addresses, `model` is what the engine serves.
    pub(crate) fn start(router: &str, engine: &str, model: &str) -> Self {
        let results = Arc::new(Mutex::new(ClientResults::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let model = model.to_owned();
        let mut routed = ClientConnection {
            address: router.to_owned(),
            stream: None,
        };
        let mut direct = ClientConnection {
            address: engine.to_owned(),
            stream: None,
        };
        let (into, until) = (Arc::clone(&results), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            cores::pin_thread(Core::Router);
            let mut number = 0;
            while !until.load(Ordering::Relaxed) {
                number += 1;
                let body = chat(&model, &format!("request {number}: how are you?"), 1).to_string();
                let result = routed.time(&body);
                into.lock().unwrap().routed.push(result);
                std::thread::sleep(PAUSE);
                let result = direct.time(&body);
                into.lock().unwrap().direct.extend(result);
                std::thread::sleep(PAUSE);
            }
        });
        Self {
            results,
            stop,
            thread: Some(thread),
        }
    }

    /// Waits until connections, tokenizer and caches are in steady state.
    pub(crate) fn warm_up(&self) {
        eventually("the honest client's first requests", || {
            (self.results.lock().unwrap().routed.len() >= 50).then_some(())
        });
        self.take();
    }

    /// The results of the requests since the last call.
    pub(crate) fn take(&self) -> ClientResults {
        std::mem::take(&mut self.results.lock().unwrap())
    }

    pub(crate) fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .take()
            .map(JoinHandle::join)
            .transpose()
            .expect("the honest client ends");
    }
}

struct ClientConnection {
    address: String,
    stream: Option<BufReader<TcpStream>>,
}

impl ClientConnection {
    /// Measures how long a chat takes.
    fn time(&mut self, body: &str) -> Result<Duration, String> {
        let clock = Stopwatch::start();
        self.post(body).map(|()| clock.elapsed())
    }

    /// Sends a chat and reads its reply. Like every HTTP client, it retries over a new connection
    /// if an idle one was closed before the first byte of the reply.
    fn post(&mut self, body: &str) -> Result<(), String> {
        if let Some(stream) = self.stream.take() {
            match self.exchange(stream, body) {
                Err(LostRequest {
                    before_reply: true, ..
                }) => {}
                result => return result.map_err(|loss| loss.why),
            }
        }
        let stream =
            TcpStream::connect(&self.address).map_err(|error| format!("connect: {error}"))?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        stream
            .set_read_timeout(Some(LIMIT))
            .map_err(|error| error.to_string())?;
        self.exchange(BufReader::new(stream), body)
            .map_err(|loss| loss.why)
    }

    fn exchange(
        &mut self,
        mut stream: BufReader<TcpStream>,
        body: &str,
    ) -> Result<(), LostRequest> {
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let sent = stream
            .get_mut()
            .write_all(format!("{head}{body}").as_bytes());
        sent.map_err(|error| LostRequest {
            before_reply: true,
            why: format!("send: {error}"),
        })?;
        let (mut line, mut length, mut status, mut close) =
            (String::new(), None, String::new(), false);
        loop {
            line.clear();
            let read = stream.read_line(&mut line);
            let before_reply = status.is_empty();
            match read {
                // Only a closed connection may be retried: a silent one is a lost request.
                Ok(0) => {
                    return Err(LostRequest {
                        before_reply,
                        why: "closed before the head ended".to_owned(),
                    });
                }
                Err(error) => {
                    let before_reply =
                        before_reply && error.kind() == std::io::ErrorKind::ConnectionReset;
                    return Err(LostRequest {
                        before_reply,
                        why: format!("head: {error}"),
                    });
                }
                Ok(_) => {}
            }
            let text = line.trim_end().to_ascii_lowercase();
            if status.is_empty() {
                status = text;
            } else if let Some(value) = text.strip_prefix("content-length:") {
                length = value.trim().parse::<usize>().ok();
            } else if text == "connection: close" {
                close = true;
            } else if text.is_empty() {
                break;
            }
        }
        let lost = |why: String| LostRequest {
            before_reply: false,
            why,
        };
        let mut reply = vec![0; length.ok_or_else(|| lost(format!("{status}: no length")))?];
        stream
            .read_exact(&mut reply)
            .map_err(|error| lost(format!("body: {error}")))?;
        if !close {
            self.stream = Some(stream);
        }
        if status.starts_with("http/1.1 200") {
            Ok(())
        } else {
            Err(lost(format!(
                "{status}: {}",
                String::from_utf8_lossy(&reply)
            )))
        }
    }
}

struct LostRequest {
    /// No byte of a reply had arrived.
    before_reply: bool,
    why: String,
}
