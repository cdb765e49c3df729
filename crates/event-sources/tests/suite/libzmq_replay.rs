//! A replay endpoint of libzmq at its default high-water mark, as engines have it. Uses `zmq` of
//! the Python in `WARMROUTE_TEST_PYTHON`, or of `python3`; without it the tests are skipped.

use std::{fmt::Write, net::SocketAddr, process::Stdio};

use contract_id::contract;
use event_sources::Endpoint;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::{TcpListener, TcpSocket, TcpStream},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::engine::{PATIENCE, TestSource, any, history, publisher, truth};

const BATCHES: u32 = 5000;

/// Answers as vLLM does, with a topic so long that the queue overflows before the system's buffers
/// hold the whole answer. It waits for a line on stdin before each answer, and prints one when
/// libzmq has its last message.
const ANSWER: &str = "
import sys, zmq
s = zmq.Context().socket(zmq.ROUTER); s.bind_to_random_port('tcp://127.0.0.1')
print(s.getsockopt_string(zmq.LAST_ENDPOINT))
batches = [bytes.fromhex(sys.stdin.readline()) for _ in range(int(sys.argv[1]))]
topic = b't' * 4096
while True:
    who, empty, start = s.recv_multipart()
    start = int.from_bytes(start, 'big')
    print(start); sys.stdin.readline()
    for n, batch in list(enumerate(batches))[start:]:
        s.send_multipart([who, b'', topic, n.to_bytes(8, 'big'), batch])
    s.send_multipart([who, b'', b'', b'\\xff' * 8, b''])
    print('sent')
";

/// A libzmq ROUTER process with a history. Killed when dropped.
struct LibzmqRouter {
    _process: Child,
    stdout_lines: Lines<BufReader<ChildStdout>>,
    stdin: ChildStdin,
    address: SocketAddr,
}

impl LibzmqRouter {
    async fn with_history(batches: &[(u64, Vec<u8>)]) -> Self {
        let mut process = Command::new(test_programs::python())
            .args(["-u", "-c", ANSWER, &batches.len().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdout_lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut stdin = process.stdin.take().unwrap();
        let endpoint = tokio::time::timeout(PATIENCE, stdout_lines.next_line())
            .await
            .expect("it binds")
            .unwrap()
            .unwrap();
        let mut lines = String::new();
        for (_, payload) in batches {
            payload
                .iter()
                .for_each(|byte| write!(lines, "{byte:02x}").unwrap());
            lines.push('\n');
        }
        stdin.write_all(lines.as_bytes()).await.unwrap();
        let address = endpoint.strip_prefix("tcp://").unwrap().parse().unwrap();
        Self {
            _process: process,
            stdout_lines,
            stdin,
            address,
        }
    }

    /// Lets it answer every request; the gate is closed until libzmq has a whole answer.
    async fn answer(mut self, gate: watch::Sender<bool>, requests: mpsc::UnboundedSender<u64>) {
        while let Ok(Some(start)) = self.stdout_lines.next_line().await {
            requests.send(start.parse().unwrap()).unwrap();
            gate.send_replace(false);
            self.stdin.write_all(b"\n").await.unwrap();
            assert_eq!(
                self.stdout_lines.next_line().await.unwrap().unwrap(),
                "sent"
            );
            gate.send_replace(true);
        }
    }
}

/// A proxy to the router that passes nothing back while the gate is closed.
struct GatedProxy {
    endpoint: Endpoint,
    task: JoinHandle<()>,
}

impl GatedProxy {
    async fn to(router: SocketAddr, open: watch::Receiver<bool>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let task = tokio::spawn(async move {
            while let Ok((reader, _)) = listener.accept().await {
                tokio::spawn(carry(reader, router, open.clone()));
            }
        });
        Self { endpoint, task }
    }
}

impl Drop for GatedProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(reader: TcpStream, router: SocketAddr, mut open: watch::Receiver<bool>) {
    let socket = TcpSocket::new_v4().unwrap();
    // A small buffer: otherwise the system's buffers hold the whole answer.
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let (mut from_router, mut to_router) = socket.connect(router).await.unwrap().into_split();
    let (mut from_reader, mut to_reader) = reader.into_split();
    let there =
        tokio::spawn(async move { tokio::io::copy(&mut from_reader, &mut to_router).await });
    let mut buffer = vec![0; 16 << 10];
    while open.wait_for(|open| *open).await.is_ok() {
        let Ok(read @ 1..) = from_router.read(&mut buffer).await else {
            break;
        };
        if to_reader.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    there.abort();
}

#[tokio::test]
#[contract("MC11", "V19")]
async fn a_history_longer_than_libzmqs_queue_arrives_whole_despite_overflow() {
    test_programs::require!(Libzmq);
    let history = history(BATCHES);
    for slow in [false, true] {
        let (_engine, endpoint) = publisher(&any()).await;
        let router = LibzmqRouter::with_history(&history).await;
        let (gate, open) = watch::channel(true);
        let direct: Endpoint = format!("tcp://{}", router.address).parse().unwrap();
        let way = GatedProxy::to(router.address, open).await;
        let (request_sender, mut requests) = mpsc::unbounded_channel();
        let answering = tokio::spawn(router.answer(gate, request_sender));

        let reader =
            TestSource::follow(&endpoint, Some(if slow { &way.endpoint } else { &direct }));
        let whole = Some(u64::from(BATCHES) - 1);
        let report = reader
            .until("the history", |report, _| {
                report.state == "live" && report.last_seq == whole
            })
            .await;
        assert_eq!(reader.index.digest(), truth(&history), "slow: {slow}");
        assert_eq!(
            (report.counts.batches, report.counts.lost_batches),
            (BATCHES.into(), 0),
            "slow: {slow}"
        );
        assert_eq!(requests.recv().await, Some(0));
        let second = requests.recv().await.unwrap();
        assert!(
            !slow || (1000..4000).contains(&second),
            "the queue overflowed: {second}"
        );
        reader.source.stop().await;
        answering.abort();
    }
}
