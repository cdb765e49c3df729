//! Clients that go on asking, at a steady pace, and keep a list of what went wrong.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::json;

use crate::harness::{Stopwatch, chat, streamed};

/// Clients that ask until they are stopped.
pub(crate) struct RequestLoad {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    failures: Arc<Mutex<Vec<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl RequestLoad {
    /// So many clients, each with a request every `every`: half of them streams, each on a connection of its own.
    pub(crate) fn start(address: &str, clients: u64, every: Duration) -> Self {
        let (stop, asked) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let failures: Arc<Mutex<Vec<String>>> = Arc::default();
        let threads = (0..clients).map(|client| {
            let (stop, asked, failures) =
                (Arc::clone(&stop), Arc::clone(&asked), Arc::clone(&failures));
            let address = address.to_owned();
            std::thread::spawn(move || {
                let mut number = 0;
                let begun = Stopwatch::start();
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    if let Err(error) = ask(&address, client * 1_000_000 + number) {
                        let mut failures = failures.lock().unwrap();
                        failures.push(format!("request {number} of client {client}: {error}"));
                    }
                    asked.fetch_add(1, Ordering::Relaxed);
                    let due = every * u32::try_from(number).unwrap();
                    std::thread::sleep(due.saturating_sub(begun.elapsed()));
                }
            })
        });
        Self {
            threads: threads.collect(),
            stop,
            asked,
            failures,
        }
    }

    /// Requests that were answered, or were not.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Stops asking; every request must have been answered whole. Returns how many there were.
    pub(crate) fn end_without_failure(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let failures = self.failures.lock().unwrap();
        let asked = self.asked.load(Ordering::Relaxed);
        assert!(
            failures.is_empty(),
            "{} of {asked} requests failed: {:#?}",
            failures.len(),
            &failures[..failures.len().min(5)]
        );
        asked
    }
}

/// One request; an error says how it was not answered whole.
fn ask(address: &str, number: u64) -> Result<(), String> {
    let stream = number.is_multiple_of(2);
    let mut body = chat("sim", &format!("question {number}"), 5);
    body["seed"] = json!(number);
    let body = if stream { streamed(body) } else { body }.to_string();
    let mut connection =
        TcpStream::connect(address).map_err(|error| format!("refused: {error}"))?;
    connection
        .set_read_timeout(Some(Duration::from_secs(30)))
        .map_err(|error| error.to_string())?;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    connection
        .write_all(format!("{head}{body}").as_bytes())
        .map_err(|error| format!("not taken: {error}"))?;
    let mut reply = Vec::new();
    connection
        .read_to_end(&mut reply)
        .map_err(|error| format!("cut: {error}"))?;
    let text = String::from_utf8_lossy(&reply);
    let whole = if stream {
        text.contains("data: [DONE]") && text.ends_with("0\r\n\r\n")
    } else {
        text.ends_with('}')
    };
    if text.starts_with("HTTP/1.1 200 ") && whole {
        Ok(())
    } else {
        Err(format!("not whole: {text}"))
    }
}
