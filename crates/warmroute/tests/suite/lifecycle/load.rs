//! Clients that send requests at a steady rate and record failures.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc, Mutex, RwLock, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::json;

use crate::harness::{Stopwatch, chat, streamed};

/// Clients that send requests until they are stopped.
pub(crate) struct RequestLoad {
    stop: Arc<AtomicBool>,
    /// Read by each request while it is under way.
    under_way: Arc<RwLock<()>>,
    requests: Arc<AtomicU64>,
    failures: Arc<Mutex<Vec<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl RequestLoad {
    /// Starts `clients` clients, each with one request per `every`: half of them streams, each on
    /// its own connection.
    pub(crate) fn start(address: &str, clients: u64, every: Duration) -> Self {
        let (stop, requests) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let failures: Arc<Mutex<Vec<String>>> = Arc::default();
        let under_way: Arc<RwLock<()>> = Arc::default();
        let threads = (0..clients).map(|client| {
            let (stop, requests, failures, under_way) = (
                Arc::clone(&stop),
                Arc::clone(&requests),
                Arc::clone(&failures),
                Arc::clone(&under_way),
            );
            let address = address.to_owned();
            std::thread::spawn(move || {
                let mut number = 0;
                let begun = Stopwatch::start();
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    let request = under_way.read().unwrap();
                    if let Err(error) = send(&address, client * 1_000_000 + number) {
                        let mut failures = failures.lock().unwrap();
                        failures.push(format!("request {number} of client {client}: {error}"));
                    }
                    drop(request);
                    requests.fetch_add(1, Ordering::Relaxed);
                    let due = every * u32::try_from(number).unwrap();
                    std::thread::sleep(due.saturating_sub(begun.elapsed()));
                }
            })
        });
        Self {
            threads: threads.collect(),
            stop,
            under_way,
            requests,
            failures,
        }
    }

    /// Requests sent so far, answered or not.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Waits until no request is under way; none begins until the guard is dropped.
    pub(crate) fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.under_way.write().unwrap()
    }

    /// Stops the clients; every request must have a complete reply. Returns the number of requests.
    pub(crate) fn end_without_failure(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let failures = self.failures.lock().unwrap();
        let requests = self.requests.load(Ordering::Relaxed);
        assert!(
            failures.is_empty(),
            "{} of {requests} requests failed: {:#?}",
            failures.len(),
            &failures[..failures.len().min(5)]
        );
        requests
    }
}

/// Sends one request; an error says why its reply was incomplete.
fn send(address: &str, number: u64) -> Result<(), String> {
    let stream = number.is_multiple_of(2);
    let mut body = chat("sim", &format!("question {number}"), 5);
    body["seed"] = json!(number);
    let body = if stream { streamed(body) } else { body }.to_string();
    let mut connection =
        TcpStream::connect(address).map_err(|error| format!("refused: {error}"))?;
    connection
        .set_read_timeout(Some(Duration::from_secs(120)))
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
