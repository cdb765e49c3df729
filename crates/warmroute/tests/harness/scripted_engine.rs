//! An engine that sends scripted replies byte for byte and records its requests.
//!
//! It lists one model, `m`, and has no events; generation requests get the scripted reply.

use std::{
    collections::{HashMap, VecDeque},
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use super::{LONGEST_WAIT, Stopwatch, json_reply};

/// The reply to one generation request.
#[derive(Clone, Debug)]
pub enum ScriptedReply {
    /// Writes each piece separately with a pause between; the connection stays open.
    Pieces(Vec<Vec<u8>>, Duration),
    /// Writes each piece when the gate opens; the connection stays open.
    Gated(Vec<Vec<u8>>, PieceGate),
    /// Writes these bytes and closes the connection.
    Cut(Vec<u8>),
    /// Closes the connection without a reply when the gate opens.
    CutGated(PieceGate),
    /// Writes these bytes, and closes the connection when the gate opens.
    CutBehind(Vec<u8>, PieceGate),
    /// Writes pieces with a pause after each and closes the connection.
    CutAfter(Vec<Vec<u8>>, Duration),
    /// Writes these bytes before it reads the request's body, which it reads much later and
    /// discards.
    Early(Vec<u8>),
    /// Writes nothing until the other side closes.
    Silence,
    /// Writes these bytes, then nothing until the other side closes.
    Stall(Vec<u8>),
    /// Writes these bytes after a pause.
    Late(Duration, Vec<u8>),
    /// Writes the first bytes, then repeats the second ones until the other side closes.
    Endless(Vec<u8>, Vec<u8>),
    /// Writes the first bytes, then the second ones this many times; the connection stays open.
    Repeated(Vec<u8>, Vec<u8>, usize),
}

/// Lets pieces of a reply through, one per [`Gate::open`].
#[derive(Clone, Debug)]
pub struct PieceGate(Sender<()>, Arc<Mutex<Receiver<()>>>);

impl PieceGate {
    pub fn new() -> Self {
        let (open, opened) = channel();
        Self(open, Arc::new(Mutex::new(opened)))
    }

    /// Lets one more piece through.
    pub fn open(&self) {
        self.0.send(()).expect("the gate keeps its other side");
    }

    fn pass(&self) {
        // A gate without an owner belongs to a test that has failed already.
        let _ = self.1.lock().unwrap().recv_timeout(LONGEST_WAIT);
    }
}

impl ScriptedReply {
    pub fn whole(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Pieces(vec![bytes.into()], Duration::ZERO)
    }
}

/// One generation request as received.
#[derive(Clone, Debug)]
pub struct SeenRequest {
    pub head: Vec<u8>,
    pub body: Vec<u8>,
    /// The moment when it was read, before its reply was begun.
    pub arrived: Stopwatch,
}

impl SeenRequest {
    fn now(head: Vec<u8>, body: Vec<u8>) -> Self {
        Self {
            head,
            body,
            arrived: Stopwatch::start(),
        }
    }

    /// The request line.
    pub fn line(&self) -> String {
        self.lines()
            .next()
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .unwrap_or_default()
    }

    /// Header names in lower case, and values.
    pub fn headers(&self) -> Vec<(String, Vec<u8>)> {
        let field = |line: &[u8]| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
            Some((name, line[colon + 1..].trim_ascii().to_vec()))
        };
        self.lines().skip(1).filter_map(field).collect()
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let value = self.headers().into_iter().find(|(known, _)| known == name);
        value.map(|(_, value)| String::from_utf8_lossy(&value).into_owned())
    }

    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.head
            .split(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
    }
}

/// The engine. Dropping it closes its listener; connections end with their other side.
pub struct ScriptedEngine {
    address: String,
    script: Arc<EngineScript>,
    seen: Receiver<SeenRequest>,
    /// Reports when the other side closed while a reply was withheld.
    pub hung_up: Receiver<Stopwatch>,
}

#[derive(Default)]
struct EngineScript {
    next: Mutex<VecDeque<ScriptedReply>>,
    always: Mutex<Option<ScriptedReply>>,
    requests: AtomicU64,
    /// Requests other than generation requests.
    probes: AtomicU64,
    /// Bytes of endless replies that the other side accepted.
    taken: AtomicU64,
    /// Whether it supports messages natively.
    native: AtomicBool,
    /// Extra replies of paths that are not for generation, beside the default ones.
    side: Mutex<HashMap<String, Vec<u8>>>,
    stop: AtomicBool,
}

impl EngineScript {
    fn reply(&self) -> ScriptedReply {
        let next = self.next.lock().unwrap().pop_front();
        let reply = next.or_else(|| self.always.lock().unwrap().clone());
        // Counted last, so that a test that changes the script after a count does not change this
        // reply.
        self.requests.fetch_add(1, Ordering::SeqCst);
        reply.unwrap_or(ScriptedReply::Silence)
    }

    fn side(&self, head: &[u8]) -> Option<Vec<u8>> {
        let line = String::from_utf8_lossy(head);
        self.side
            .lock()
            .unwrap()
            .get(line.split(' ').nth(1)?)
            .cloned()
    }
}

impl ScriptedEngine {
    /// An engine that always sends `reply`.
    pub fn start(reply: ScriptedReply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let (seen_tx, seen) = channel();
        let (hung_up_tx, hung_up) = channel();
        let script = Arc::new(EngineScript {
            always: Mutex::new(Some(reply)),
            ..EngineScript::default()
        });
        let scripted = Arc::clone(&script);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if scripted.stop.load(Ordering::SeqCst) {
                    break;
                }
                let (script, seen, hung_up) =
                    (Arc::clone(&scripted), seen_tx.clone(), hung_up_tx.clone());
                std::thread::spawn(move || {
                    EngineConnection {
                        reader: BufReader::new(stream),
                        script,
                        seen,
                        hung_up,
                    }
                    .run()
                });
            }
        });
        Self {
            address,
            script,
            seen,
            hung_up,
        }
    }

    /// The same with a `/v1/messages`.
    pub fn with_native_messages(reply: ScriptedReply) -> Self {
        let engine = Self::start(reply);
        engine.script.native.store(true, Ordering::SeqCst);
        engine
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers this path with this reply to every request from now on. Its requests count as seen.
    pub fn answer(&self, path: &str, status: &str, body: &str) {
        self.script
            .side
            .lock()
            .unwrap()
            .insert(path.to_owned(), json_reply(status, "", body));
    }

    /// Answers this target with these bytes to every request from now on. Its requests count as
    /// seen.
    pub fn answer_bytes(&self, target: &str, reply: Vec<u8>) {
        let mut side = self.script.side.lock().unwrap();
        side.insert(target.to_owned(), reply);
    }

    /// The requests that were seen and not taken.
    pub fn seen(&self) -> impl Iterator<Item = SeenRequest> {
        self.seen.try_iter()
    }

    /// Their request lines.
    pub fn seen_lines(&self) -> Vec<String> {
        self.seen().map(|request| request.line()).collect()
    }

    /// Sends this reply from now on.
    pub fn script(&self, reply: ScriptedReply) {
        *self.script.always.lock().unwrap() = Some(reply);
    }

    /// Sends this reply to one more request before the permanent one.
    pub fn once(&self, reply: ScriptedReply) {
        self.script.next.lock().unwrap().push_back(reply);
    }

    /// The next generation request that arrived.
    pub fn next_request(&self) -> SeenRequest {
        self.seen
            .recv_timeout(LONGEST_WAIT)
            .expect("a request reaches the engine")
    }

    /// Forgets the seen requests and the one-time replies.
    pub fn forget(&self) {
        self.script.next.lock().unwrap().clear();
        while self.seen.try_recv().is_ok() {}
    }

    /// Number of generation requests so far.
    pub fn requests(&self) -> u64 {
        self.script.requests.load(Ordering::SeqCst)
    }

    /// Number of other requests so far.
    pub fn probes(&self) -> u64 {
        self.script.probes.load(Ordering::SeqCst)
    }

    /// Bytes of endless replies that the other side accepted so far.
    pub fn taken(&self) -> u64 {
        self.script.taken.load(Ordering::SeqCst)
    }

    /// The moment when the other side gave up on a withheld reply.
    pub fn hang_up(&self) -> Stopwatch {
        self.hung_up
            .recv_timeout(LONGEST_WAIT)
            .expect("the engine sees the other side leave")
    }
}

impl Drop for ScriptedEngine {
    fn drop(&mut self) {
        self.script.stop.store(true, Ordering::SeqCst);
        // Wakes the listening thread.
        let _ = TcpStream::connect(&self.address);
    }
}

struct EngineConnection {
    reader: BufReader<TcpStream>,
    script: Arc<EngineScript>,
    seen: Sender<SeenRequest>,
    hung_up: Sender<Stopwatch>,
}

impl EngineConnection {
    fn run(mut self) {
        let _ = self.reader.get_ref().set_nodelay(true);
        while let Some(head) = self.read_head() {
            if let Some(reply) = self.script.side(&head) {
                let Some(body) = self.read_body(&head) else {
                    return;
                };
                let _ = self.seen.send(SeenRequest::now(head, body));
                if self.write(&reply).is_none() {
                    return;
                }
                continue;
            }
            if head.starts_with(b"GET ") {
                self.script.probes.fetch_add(1, Ordering::SeqCst);
                if self.write(&side_route(&head)).is_none() {
                    return;
                }
                continue;
            }
            let request_body = if head.starts_with(b"POST /tokenize ") {
                self.read_body(&head)
            } else {
                None
            };
            // The router probes for a `/tokenize` before any request; that is not scripted.
            if request_body.as_deref() == Some(br#"{"model":"m","prompt":"warm"}"#) {
                self.script.probes.fetch_add(1, Ordering::SeqCst);
                if self.write(&side_route(&head)).is_none() {
                    return;
                }
                continue;
            }
            // The router probes for a `/v1/messages` before any request.
            let messages = if head.starts_with(b"POST /v1/messages ") {
                self.read_body(&head)
            } else {
                None
            };
            if messages.as_deref() == Some(b"{}") {
                self.script.probes.fetch_add(1, Ordering::SeqCst);
                let native = self.script.native.load(Ordering::SeqCst);
                let status = if native {
                    "400 Bad Request"
                } else {
                    "404 Not Found"
                };
                if self.write(&json_reply(status, "", "{}")).is_none() {
                    return;
                }
                continue;
            }
            let request_body = request_body.or(messages);
            let reply = self.script.reply();
            if let ScriptedReply::Early(bytes) = &reply {
                let _ = self.seen.send(SeenRequest::now(head, Vec::new()));
                let _ = self.write(bytes);
                // Closing with unread bytes would discard the reply, so the rest is read after a
                // delay.
                std::thread::sleep(Duration::from_millis(200));
                let _ = std::io::copy(&mut self.reader, &mut std::io::sink());
                return;
            }
            let Some(body) = request_body.or_else(|| self.read_body(&head)) else {
                return;
            };
            let _ = self.seen.send(SeenRequest::now(head, body));
            if self.answer(reply).is_none() {
                return;
            }
        }
    }

    /// `None` when the connection is over.
    fn answer(&mut self, reply: ScriptedReply) -> Option<()> {
        match reply {
            ScriptedReply::Pieces(pieces, pause) => {
                for piece in pieces {
                    self.write(&piece)?;
                    std::thread::sleep(pause);
                }
                Some(())
            }
            ScriptedReply::Gated(pieces, gate) => pieces.iter().try_for_each(|piece| {
                gate.pass();
                self.write(piece)
            }),
            ScriptedReply::CutGated(gate) => {
                gate.pass();
                self.answer(ScriptedReply::Cut(Vec::new()))
            }
            ScriptedReply::CutBehind(bytes, gate) => {
                self.write(&bytes)?;
                self.answer(ScriptedReply::CutGated(gate))
            }
            ScriptedReply::CutAfter(pieces, pause) => {
                self.answer(ScriptedReply::Pieces(pieces, pause))?;
                self.answer(ScriptedReply::Cut(Vec::new()))
            }
            ScriptedReply::Late(pause, bytes) => {
                std::thread::sleep(pause);
                self.write(&bytes)
            }
            ScriptedReply::Cut(bytes) => {
                let _ = self.write(&bytes);
                let _ = self.reader.get_ref().shutdown(Shutdown::Both);
                None
            }
            ScriptedReply::Stall(bytes) => {
                let _ = self.write(&bytes);
                self.until_gone();
                None
            }
            ScriptedReply::Silence | ScriptedReply::Early(_) => {
                self.until_gone();
                None
            }
            ScriptedReply::Repeated(first, again, times) => {
                self.write(&first)?;
                (0..times).try_for_each(|_| self.write(&again))
            }
            ScriptedReply::Endless(first, again) => {
                let _ = self.write(&first);
                while self.write(&again).is_some() {
                    self.script
                        .taken
                        .fetch_add(again.len() as u64, Ordering::SeqCst);
                }
                let _ = self.hung_up.send(Stopwatch::start());
                None
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Option<()> {
        self.reader.get_mut().write_all(bytes).ok()
    }

    fn until_gone(&mut self) {
        let mut bytes = [0];
        if matches!(self.reader.read(&mut bytes), Ok(0) | Err(_)) {
            let _ = self.hung_up.send(Stopwatch::start());
        }
    }

    fn read_head(&mut self) -> Option<Vec<u8>> {
        let mut head = Vec::new();
        loop {
            let before = head.len();
            self.reader
                .read_until(b'\n', &mut head)
                .ok()
                .filter(|n| *n > 0)?;
            if &head[before..] == b"\r\n" {
                return Some(head);
            }
        }
    }

    fn read_body(&mut self, head: &[u8]) -> Option<Vec<u8>> {
        let seen = SeenRequest::now(head.to_vec(), Vec::new());
        if seen.header("transfer-encoding").as_deref() == Some("chunked") {
            return self.read_chunks();
        }
        let length = seen
            .header("content-length")
            .and_then(|length| length.parse().ok())
            .unwrap_or(0);
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).ok()?;
        Some(body)
    }
}

impl EngineConnection {
    fn read_chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
            let size = usize::from_str_radix(line.trim_end(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            self.reader.read_exact(&mut chunk).ok()?;
            if size == 0 {
                return Some(body);
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }
}

/// The replies to probes.
fn side_route(head: &[u8]) -> Vec<u8> {
    let line = String::from_utf8_lossy(head);
    match line.split(' ').nth(1).unwrap_or_default() {
        "/health" => json_reply("200 OK", "", ""),
        "/v1/models" => {
            let list = r#"{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"t"}]}"#;
            json_reply("200 OK", "", list)
        }
        // Like a bootstrap server of Mooncake, which names the engines behind it.
        "/query" => json_reply(
            "200 OK",
            "",
            r#"{"0":{"engine_id":"engine-0","worker_addr":{}}}"#,
        ),
        _ => json_reply("404 Not Found", "", "{}"),
    }
}
