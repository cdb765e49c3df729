//! A backend's stream of events that name whole prefixes, on a port of its own. It can go away and come back.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::{
    io::{BufRead, BufReader, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use dialect::Anchor;

/// The stream. Dropping it closes its listener and its connections.
pub struct PrefixStream {
    address: String,
    open: Arc<Mutex<Vec<TcpStream>>>,
    stop: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl PrefixStream {
    pub fn start() -> Self {
        Self::on("127.0.0.1:0")
    }

    /// On the address of one that is gone.
    pub fn on(address: &str) -> Self {
        let listener = TcpListener::bind(address).expect("the port is free");
        let address = listener.local_addr().expect("an address").to_string();
        let (open, stop) = (Arc::<Mutex<Vec<TcpStream>>>::default(), Arc::<AtomicBool>::default());
        let (connections, stopping) = (Arc::clone(&open), Arc::clone(&stop));
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopping.load(Ordering::SeqCst) {
                    break;
                }
                if let Some(stream) = greeted(stream) {
                    connections.lock().unwrap().push(stream);
                }
            }
        });
        Self { address, open, stop, accepting: Some(accepting) }
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1/kv_events", self.address)
    }

    /// Says that something happened to a chat's system prompt for model `sim`. Needs a connection.
    pub fn say(&self, kind: &str, system: &str, tokens: u32) {
        let key = Anchor::System(system.into()).key("sim", 1024);
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.say_raw(&format!("event: {kind}\ndata: {{\"prefix_hash\": \"{key}\", \"token_count\": {tokens}}}\n\n"));
    }

    /// Sends these bytes. Needs a connection.
    pub fn say_raw(&self, text: &str) {
        let mut open = self.open.lock().unwrap();
        let newest = open.last_mut().expect("the router is connected");
        newest.write_all(text.as_bytes()).expect("the router reads");
    }
}

impl Drop for PrefixStream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(&self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The connection, its request read and its reply begun.
fn greeted(mut stream: TcpStream) -> Option<TcpStream> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    while !lines.next()?.ok()?.is_empty() {}
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").ok()?;
    Some(stream)
}
