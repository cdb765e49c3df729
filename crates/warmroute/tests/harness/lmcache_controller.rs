//! A stand-in for LMCache's controller: answers as configured, in the format of LMCache 0.5.6, and
//! records its queries.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use test_programs::ReservedPort;

use super::{Stopwatch, json_reply};

/// The behaviour of a path.
#[derive(Clone, Debug)]
pub enum ControllerBehavior {
    /// Answers as LMCache does.
    Well,
    /// Answers as LMCache does, after this time.
    Slow(Duration),
    /// Answers with this body.
    Saying(&'static str),
    /// Answers with a server error.
    Failing,
    /// Never answers.
    Hanging,
}

/// One query.
#[derive(Clone, Debug)]
pub struct ControllerQuery {
    pub path: String,
    pub authorization: Option<String>,
    pub body: Value,
    pub at: Stopwatch,
}

/// The controller. Dropping it closes its listener.
pub struct LmcacheController {
    pub address: String,
    pub port: Arc<ReservedPort>,
    state: Arc<ControllerState>,
}

#[derive(Default)]
struct ControllerState {
    /// Chunks by instance.
    cached: Mutex<HashMap<String, u64>>,
    /// Prompt prefixes by instance.
    prompts: Mutex<Vec<(String, Vec<u64>)>>,
    behaviors: Mutex<HashMap<String, ControllerBehavior>>,
    queries: Mutex<Vec<ControllerQuery>>,
    stop: AtomicBool,
}

impl LmcacheController {
    pub fn start() -> Self {
        Self::at(Arc::new(ReservedPort::new()))
    }

    /// Starts at the port of an earlier controller, once that is gone.
    pub fn at(port: Arc<ReservedPort>) -> Self {
        let address = port.address();
        let listener = port.listen();
        let state = Arc::new(ControllerState::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.stop.load(Ordering::SeqCst) {
                    break;
                }
                let state = Arc::clone(&shared);
                thread::spawn(move || state.answer(stream));
            }
        });
        Self {
            address,
            port,
            state,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets the number of chunks that an instance holds.
    pub fn holds(&self, instance: &str, chunks: u64) {
        self.state
            .cached
            .lock()
            .unwrap()
            .insert(instance.to_owned(), chunks);
    }

    /// Makes an instance hold prompts that begin with these tokens, up to their end.
    pub fn holds_prompt(&self, instance: &str, tokens: &[u64]) {
        self.state
            .prompts
            .lock()
            .unwrap()
            .push((instance.to_owned(), tokens.to_vec()));
    }

    /// Sets the behaviour of this path from now on.
    pub fn answers(&self, path: &str, behavior: ControllerBehavior) {
        self.state
            .behaviors
            .lock()
            .unwrap()
            .insert(path.to_owned(), behavior);
    }

    /// The queries so far at this path.
    pub fn queries(&self, path: &str) -> Vec<ControllerQuery> {
        self.state
            .queries
            .lock()
            .unwrap()
            .iter()
            .filter(|query| query.path == path)
            .cloned()
            .collect()
    }
}

impl Drop for LmcacheController {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        // Wakes the listening thread.
        let _ = TcpStream::connect(&self.address);
    }
}

impl ControllerState {
    fn answer(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream);
        let Some(query) = read(&mut reader) else {
            return;
        };
        let path = query.path.clone();
        self.queries.lock().unwrap().push(query.clone());
        let behavior = self
            .behaviors
            .lock()
            .unwrap()
            .get(&path)
            .cloned()
            .unwrap_or(ControllerBehavior::Well);
        let reply = match behavior {
            ControllerBehavior::Well => self.usual(&query),
            ControllerBehavior::Slow(pause) => {
                thread::sleep(pause);
                self.usual(&query)
            }
            ControllerBehavior::Saying(body) => json_reply("200 OK", "", body),
            ControllerBehavior::Failing => {
                json_reply("500 Internal Server Error", "", r#"{"detail":"broken"}"#)
            }
            ControllerBehavior::Hanging => {
                // Waits until the other side gives up; no test waits a minute for that.
                let _ = reader
                    .get_ref()
                    .set_read_timeout(Some(Duration::from_secs(60)));
                let _ = reader.read(&mut [0]);
                return;
            }
        };
        let _ = reader.get_mut().write_all(&reply);
    }

    /// LMCache's own answer.
    fn usual(&self, query: &ControllerQuery) -> Vec<u8> {
        match &*query.path {
            "/controller/workers" => json_reply("200 OK", "", &self.workers().to_string()),
            "/lookup" => json_reply("200 OK", "", &self.layout(&query.body).to_string()),
            _ => json_reply("404 Not Found", "", "{}"),
        }
    }

    fn workers(&self) -> Value {
        let cached = self.cached.lock().unwrap();
        let one = |(instance, chunks): (&String, &u64)| {
            json!({"instance_id": instance, "worker_id": 0, "ip": "127.0.0.1", "port": 8500, "peer_init_url": null,
                   "registration_time": 1.0, "last_heartbeat_time": 2.0, "key_count": chunks})
        };
        let workers: Vec<Value> = cached.iter().map(one).collect();
        json!({"total_count": workers.len(), "workers": workers})
    }

    fn layout(&self, query: &Value) -> Value {
        let query: Vec<u64> = query["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_u64)
            .collect();
        let mut layout = serde_json::Map::new();
        for (instance, known) in self.prompts.lock().unwrap().iter() {
            let matched = query
                .iter()
                .zip(known)
                .take_while(|(left, right)| left == right)
                .count();
            if matched > 0 {
                layout.insert(instance.clone(), json!(["LocalCPUBackend", matched]));
            }
        }
        json!({"event_id": "Lookup", "layout_info": layout})
    }
}

/// `None` if the connection ends without a query.
fn read(reader: &mut BufReader<TcpStream>) -> Option<ControllerQuery> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let (mut length, mut authorization) = (0, None);
    loop {
        let mut header = String::new();
        reader
            .read_line(&mut header)
            .ok()
            .filter(|read| *read > 0)?;
        let Some((name, value)) = header.trim_end().split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok()?,
            "authorization" => authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Some(ControllerQuery {
        path,
        authorization,
        body,
        at: Stopwatch::start(),
    })
}
