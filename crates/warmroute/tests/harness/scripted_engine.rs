//! An engine that answers what it is told to, byte for byte, and shows what it was sent.
//!
//! It lists one model and has no events; requests for a generation get the scripted reply.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

/// What is done with one generation request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// These pieces, each in a write of its own with a pause between; the connection stays open.
    Pieces(Vec<Vec<u8>>, Duration),
    /// These bytes, and then the connection is closed.
    Cut(Vec<u8>),
    /// Nothing, until the other side closes.
    Silence,
    /// These bytes, then nothing until the other side closes.
    Stall(Vec<u8>),
}

/// One generation request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub head: String,
    pub body: Vec<u8>,
}

/// The engine. Dropping it closes its listener.
pub struct ScriptedEngine {
    address: String,
    script: Arc<Mutex<Reply>>,
    seen: Receiver<Seen>,
    /// Says that the other side closed while a reply was withheld.
    pub hung_up: Receiver<()>,
    stop: Arc<AtomicBool>,
}

impl ScriptedEngine {
    pub fn start(reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let (seen_tx, seen) = channel();
        let (hung_up_tx, hung_up) = channel();
        let (script, stop) = (Arc::new(Mutex::new(reply)), Arc::new(AtomicBool::new(false)));
        let (scripted, stopped) = (Arc::clone(&script), Arc::clone(&stop));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let (script, seen, hung_up) = (Arc::clone(&scripted), seen_tx.clone(), hung_up_tx.clone());
                std::thread::spawn(move || connection(stream, &script, &seen, &hung_up));
            }
        });
        Self { address, script, seen, hung_up, stop }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn script(&self, reply: Reply) {
        *self.script.lock().unwrap() = reply;
    }

    /// The next generation request that came.
    pub fn next_request(&self) -> Seen {
        self.seen.recv_timeout(Duration::from_secs(20)).expect("a request reaches the engine")
    }
}

impl Drop for ScriptedEngine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
    }
}

fn connection(stream: TcpStream, script: &Mutex<Reply>, seen: &Sender<Seen>, hung_up: &Sender<()>) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader) {
        let stream = reader.get_mut();
        if request.head.starts_with("GET ") {
            let path = request.head.split(' ').nth(1).unwrap_or_default();
            let (status, body) = match path {
                "/health" => ("200 OK", String::new()),
                "/v1/models" => (
                    "200 OK",
                    r#"{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"t"}]}"#.to_owned(),
                ),
                _ => ("404 Not Found", "{}".to_owned()),
            };
            let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
            if stream.write_all(format!("{head}{body}").as_bytes()).is_err() {
                return;
            }
            continue;
        }
        let _ = seen.send(request);
        let reply = script.lock().unwrap().clone();
        match reply {
            Reply::Pieces(pieces, pause) => {
                for piece in pieces {
                    if stream.write_all(&piece).is_err() {
                        return;
                    }
                    std::thread::sleep(pause);
                }
            }
            Reply::Cut(bytes) => {
                let _ = stream.write_all(&bytes);
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
            Reply::Silence | Reply::Stall(_) => {
                if let Reply::Stall(bytes) = &reply {
                    let _ = stream.write_all(bytes);
                }
                let mut byte = [0];
                if matches!(reader.read(&mut byte), Ok(0) | Err(_)) {
                    let _ = hung_up.send(());
                }
                return;
            }
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut head = String::new();
    loop {
        let before = head.len();
        reader.read_line(&mut head).ok().filter(|n| *n > 0)?;
        if &head[before..] == "\r\n" {
            break;
        }
    }
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse::<usize>().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Seen { head, body })
}
