//! A scripted engine on a real socket: it answers paths as the test specifies, and can die and
//! return.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use test_programs::ReservedPort;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream, lookup_host},
    task::JoinSet,
};

/// The answer for a path.
#[derive(Clone, Debug)]
pub(crate) enum PathAnswer {
    Reply(u16, Vec<u8>),
    /// The connection stays open and silent.
    Hang,
}

#[derive(Default)]
struct AnswerScript {
    answers: HashMap<String, PathAnswer>,
    /// Request heads, oldest first.
    heads: Vec<String>,
}

pub(crate) struct FakeEngine {
    address: SocketAddr,
    /// Keeps the port reserved while the engine is away.
    _port: ReservedPort,
    script: Arc<Mutex<AnswerScript>>,
    running: Option<tokio::task::JoinHandle<()>>,
}

impl FakeEngine {
    /// A healthy engine that serves one model.
    pub(crate) async fn serving(model: &str) -> Self {
        Self::serving_at("127.0.0.1", model).await
    }

    /// The same on another loopback address.
    pub(crate) async fn serving_at(host: &str, model: &str) -> Self {
        let mut engine = Self::bound_at(host).await;
        engine.models(&[model]);
        engine.answer("/health", 200, "");
        engine.start();
        engine
    }

    /// An engine with a reserved port that does not listen yet.
    pub(crate) async fn bound() -> Self {
        Self::bound_at("127.0.0.1").await
    }

    async fn bound_at(host: &str) -> Self {
        let port = ReservedPort::new();
        let address = lookup_host((host, port.number()))
            .await
            .unwrap()
            .next()
            .unwrap();
        Self {
            address,
            _port: port,
            script: Arc::default(),
            running: None,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn answer(&self, path: &str, status: u16, body: impl Into<Vec<u8>>) {
        self.script
            .lock()
            .answers
            .insert(path.to_owned(), PathAnswer::Reply(status, body.into()));
    }

    pub(crate) fn hang(&self, path: &str) {
        self.script
            .lock()
            .answers
            .insert(path.to_owned(), PathAnswer::Hang);
    }

    pub(crate) fn models(&self, ids: &[&str]) {
        let entries: Vec<String> = ids
            .iter()
            .map(|id| format!(r#"{{"id":"{id}","object":"model","created":7,"owned_by":"test","max_model_len":4096}}"#))
            .collect();
        self.answer(
            "/v1/models",
            200,
            format!(r#"{{"object":"list","data":[{}]}}"#, entries.join(",")),
        );
    }

    /// Adds vLLM's side routes.
    pub(crate) fn vllm(&self, block_size: u32) {
        self.answer("/version", 200, r#"{"version":"0.32.0"}"#);
        self.answer(
            "/metrics",
            200,
            format!(
                "vllm:cache_config_info{{block_size=\"{block_size}\",engine=\"0\",num_gpu_blocks=\"512\"}} 1.0\n\
                 vllm:num_requests_running{{engine=\"0\"}} 0.0\n"
            ),
        );
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.script.lock().heads.clone()
    }

    pub(crate) fn start(&mut self) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.address).unwrap();
        let listener = socket.listen(64).unwrap();
        let script = Arc::clone(&self.script);
        self.running = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, Arc::clone(&script)));
            }
        }));
    }

    /// The process dies: the port refuses and open connections are cut.
    pub(crate) async fn die(&mut self) {
        if let Some(running) = self.running.take() {
            running.abort();
            let _ = running.await;
        }
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

/// Returns whether these are a head and the body that it announces: a connection that closes with
/// unread bytes may take the reply with it.
fn is_whole(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|end| end == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&request[..end]);
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().unwrap())
    });
    request.len() >= end + 4 + length.unwrap_or(0)
}

async fn serve(mut stream: TcpStream, script: Arc<Mutex<AnswerScript>>) {
    let mut head = Vec::new();
    let mut chunk = [0; 4096];
    while !is_whole(&head) {
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(read) => head.extend_from_slice(&chunk[..read]),
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split_whitespace().nth(1).unwrap_or("/").to_owned();
    let answer = {
        let mut script = script.lock();
        script.heads.push(head);
        script
            .answers
            .get(&path)
            .cloned()
            .unwrap_or(PathAnswer::Reply(404, b"not here".to_vec()))
    };
    match answer {
        PathAnswer::Reply(status, body) => {
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(&body).await;
            let _ = stream.shutdown().await;
        }
        PathAnswer::Hang => std::future::pending().await,
    }
}
