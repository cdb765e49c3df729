//! A proxy in front of an engine that forwards everything, with the changes of a test.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::Value;

use crate::harness::{Program, json_reply};

/// A request to the engine.
pub(crate) struct FrontRequest {
    pub(crate) path: String,
    /// Null for a request without a JSON body.
    pub(crate) body: Value,
}

/// Changes to requests and replies.
pub(crate) trait FrontBehavior: Send + Sync + 'static {
    /// Changes a request; a returned reply replaces the engine's.
    fn on_request(&self, _request: &mut FrontRequest) -> Option<Vec<u8>> {
        None
    }

    /// Changes the engine's JSON reply to `path`.
    fn reply(&self, _path: &str, _body: &mut Value) {}
}

/// The front. Dropping it closes its listener.
pub(crate) struct EngineFront {
    address: String,
    stop: Arc<AtomicBool>,
}

impl EngineFront {
    pub(crate) fn of(engine: &Program, behavior: impl FrontBehavior) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let (engine, behavior) = (engine.data(), Arc::new(behavior));
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (engine, behavior) = (engine.clone(), Arc::clone(&behavior));
                std::thread::spawn(move || serve(stream, &engine, &*behavior));
            }
        });
        Self { address, stop }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for EngineFront {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the listening thread.
        let _ = TcpStream::connect(&self.address);
    }
}

/// Serves one request per connection: every reply closes it.
fn serve(mut client: TcpStream, engine: &str, behavior: &dyn FrontBehavior) -> Option<()> {
    client
        .set_read_timeout(Some(Duration::from_secs(120)))
        .ok()?;
    let (head, body) = read_message(&mut client)?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?, first.next()?.to_owned());
    let mut incoming = FrontRequest {
        path,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    if let Some(reply) = behavior.on_request(&mut incoming) {
        return client.write_all(&reply).ok();
    }
    let is_forwarded = |line: &&str| {
        let name = line
            .split(':')
            .next()
            .unwrap_or_default()
            .to_ascii_lowercase();
        !line.is_empty() && !["content-length", "connection"].contains(&name.as_str())
    };
    let headers: String = lines
        .filter(is_forwarded)
        .map(|line| format!("{line}\r\n"))
        .collect();
    let body = if incoming.body.is_null() {
        String::new()
    } else {
        incoming.body.to_string()
    };
    let length = body.len();
    let path = &incoming.path;
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut upstream = TcpStream::connect(engine).ok()?;
    upstream.write_all(request.as_bytes()).ok()?;
    let (head, body) = read_message(&mut upstream)?;
    let reply = match serde_json::from_slice::<Value>(&body) {
        Ok(mut json) => {
            behavior.reply(path, &mut json);
            let status = head.split("\r\n").next()?.split_once(' ')?.1.to_owned();
            json_reply(&status, "connection: close\r\n", &json.to_string())
        }
        // Replies that are not JSON: metrics, and the empty body of a health check.
        Err(_) => [head.as_bytes(), b"\r\n\r\n", &body].concat(),
    };
    client.write_all(&reply).ok()
}

/// Reads a head without its empty line, and a body of the announced length or up to the end.
fn read_message(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 8192];
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        let n = stream.read(&mut chunk).ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&chunk[..n]);
    };
    let body = bytes.split_off(end + 4);
    let head = String::from_utf8(bytes[..end].to_vec()).ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().ok())
            .flatten()
    });
    let mut body = body;
    while length.is_some_and(|length| body.len() < length) {
        let n = stream.read(&mut chunk).ok().filter(|n| *n > 0)?;
        body.extend_from_slice(&chunk[..n]);
    }
    Some((head, body))
}
