//! A backend's event stream of whole prefixes, on its own port. It can go away and come back.

#![allow(unreachable_pub, reason = "a module of a test program")]

use std::{
    io::{BufRead, BufReader, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use dialect::Anchor;

/// The stream. Dropping it closes its listener and its connections.
pub struct PrefixStream {
    address: String,
    state: Arc<Mutex<PrefixStreamState>>,
}

#[derive(Default)]
struct PrefixStreamState {
    presence: Presence,
    open: Vec<TcpStream>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Presence {
    #[default]
    Here,
    /// Cuts off every connection at once; the port stays bound, so that no other process takes it.
    Away,
    Over,
}

impl PrefixStream {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let state = Arc::<Mutex<PrefixStreamState>>::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Locked before the router can see the connection, so that a following `say` finds
                // it.
                let mut state = shared.lock().unwrap();
                match state.presence {
                    Presence::Here => state.open.extend(accept_stream(stream)),
                    Presence::Away => {}
                    Presence::Over => break,
                }
            }
        });
        Self { address, state }
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1/kv_events", self.address)
    }

    /// Closes its connections and accepts none.
    pub fn go_away(&self) {
        self.leave(Presence::Away);
    }

    pub fn come_back(&self) {
        self.state.lock().unwrap().presence = Presence::Here;
    }

    /// Sends an event about a chat's system prompt for model `sim`. Needs a connection.
    pub fn publish(&self, kind: &str, system: &str, tokens: u32) {
        let key = Anchor::System(system.into()).key("sim", 1024);
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.publish_raw(&format!(
            "event: {kind}\ndata: {{\"prefix_hash\": \"{key}\", \"token_count\": {tokens}}}\n\n"
        ));
    }

    /// Sends these bytes. Needs a connection.
    pub fn publish_raw(&self, text: &str) {
        let mut state = self.state.lock().unwrap();
        let newest = state.open.last_mut().expect("the router is connected");
        newest.write_all(text.as_bytes()).expect("the router reads");
    }

    fn leave(&self, presence: Presence) {
        let mut state = self.state.lock().unwrap();
        state.presence = presence;
        for stream in state.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for PrefixStream {
    fn drop(&mut self) {
        self.leave(Presence::Over);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(&self.address);
    }
}

/// The connection after its request was read and its reply begun.
fn accept_stream(mut stream: TcpStream) -> Option<TcpStream> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    while !lines.next()?.ok()?.is_empty() {}
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        .ok()?;
    Some(stream)
}
