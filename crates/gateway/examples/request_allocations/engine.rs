//! The engine: a loopback server with blocking threads.

use std::{
    io::{self, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use crate::client::{Message, read_message};

const MODELS: &str = r#"{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","root":"m","max_model_len":4096}]}"#;
const REPLY: &str = r#"{"id":"chatcmpl-7","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"It holds no block of it."},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":128,"total_tokens":136,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":64}}}"#;
const EVENT: &str = "data: {\"id\":\"chatcmpl-7\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" block\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
const END: &str = "data: [DONE]\n\n";

/// An engine that sends the next event of a stream when the client has the last one.
pub(crate) struct Engine {
    port: u16,
    /// Events that may be sent.
    allowed: Mutex<u32>,
    changed: Condvar,
}

impl Engine {
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let engine = Arc::new(Self {
            port: listener.local_addr()?.port(),
            allowed: Mutex::default(),
            changed: Condvar::new(),
        });
        let serving = Arc::clone(&engine);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let engine = Arc::clone(&serving);
                // A connection ends with the server in front of it.
                thread::spawn(move || engine.serve(stream));
            }
        });
        Ok(engine)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Lets one more event go.
    pub(crate) fn allow_event(&self) {
        *self.allowed() += 1;
        self.changed.notify_one();
    }

    fn allowed(&self) -> MutexGuard<'_, u32> {
        self.allowed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_permission(&self) {
        let waiting = self
            .changed
            .wait_while(self.allowed(), |allowed| *allowed == 0);
        *waiting.unwrap_or_else(PoisonError::into_inner) -= 1;
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let Message { start, body, .. } = read_message(&mut reader)?;
            match events_of(&body) {
                Some(events) => self.stream(&stream, events)?,
                None if start.starts_with("POST") => whole(&stream, REPLY)?,
                None => whole(&stream, MODELS)?,
            }
        }
    }

    fn stream(&self, mut stream: &TcpStream, events: u32) -> io::Result<()> {
        let head = "HTTP/1.1 200 OK\r\ndate: Thu, 26 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all([head, &chunk(EVENT)].concat().as_bytes())?;
        for _ in 1..events {
            self.wait_for_permission();
            stream.write_all(chunk(EVENT).as_bytes())?;
        }
        self.wait_for_permission();
        stream.write_all([&chunk(END), "0\r\n\r\n"].concat().as_bytes())
    }
}

fn whole(mut stream: &TcpStream, body: &str) -> io::Result<()> {
    let length = body.len();
    let head = "HTTP/1.1 200 OK\r\ndate: Thu, 26 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: application/json";
    stream.write_all(format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes())
}

fn chunk(event: &str) -> String {
    format!("{:x}\r\n{event}\r\n", event.len())
}

/// The number of events that a request asks for; `None`: it wants a whole reply.
fn events_of(body: &str) -> Option<u32> {
    let asked = body.contains(r#""stream":true"#);
    let (_, rest) = body.split_once(r#""max_tokens":"#)?;
    let digits = rest.split(|at: char| !at.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|_| asked)
}
