//! An engine whose events are polled, as trtllm-serve's.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use contract_id::contract;
use event_sources::{PollSource, PollSpec, SourceHandle};
use kv_blocks::{BlockSize, DpRank, Target, WorkerId};
use kv_index::{IndexSettings, KvIndex};
use net::Clock;
use parking_lot::Mutex;
use serde_json::{Value, json};
use test_programs::ReservedPort;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::watch,
    task::JoinHandle,
};

use crate::residency::{self, BLOCK, until, until_resident};

/// Time limit of a wait; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(120);
const TARGET: Target = Target {
    worker: WorkerId(3),
    rank: DpRank(0),
};

/// The engine's next reply: a status and a body.
type PolledAnswers = Arc<Mutex<VecDeque<(u16, Vec<u8>)>>>;

/// A server that gives each reply once, then empty lists.
struct PolledEngine {
    answers: PolledAnswers,
    requests: watch::Receiver<u32>,
    head: Arc<Mutex<String>>,
    port: Arc<ReservedPort>,
    task: JoinHandle<()>,
}

impl Drop for PolledEngine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PolledEngine {
    fn start() -> Self {
        Self::on(Arc::new(ReservedPort::new()))
    }

    fn on(port: Arc<ReservedPort>) -> Self {
        let listener = port.listen();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let answers = PolledAnswers::default();
        let (count, requests) = watch::channel(0);
        let head: Arc<Mutex<String>> = Arc::default();
        let (given, heads) = (Arc::clone(&answers), Arc::clone(&head));
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else {
                        break;
                    };
                    request.push(byte);
                }
                *heads.lock() = String::from_utf8_lossy(&request).into_owned();
                let (status, body) = given.lock().pop_front().unwrap_or((200, b"[]".to_vec()));
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
                );
                // A reader closes the connection when it has read enough.
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&body).await;
                count.send_modify(|count| *count += 1);
            }
        });
        Self {
            answers,
            requests,
            head,
            port,
            task,
        }
    }

    fn reply_events(&self, events: &[Value]) {
        self.answers
            .lock()
            .push_back((200, Value::from(events.to_vec()).to_string().into_bytes()));
    }

    fn follow(&self, change: impl FnOnce(&mut PollSpec)) -> (SourceHandle, Arc<KvIndex>) {
        let url = format!("http://{}", self.port.address()).parse().unwrap();
        let mut spec = PollSpec::new(TARGET.worker, "w3", "m", url);
        spec.block_size = BlockSize::new(BLOCK.into()).unwrap();
        spec.interval = Duration::from_millis(5);
        spec.idle_interval = Duration::from_millis(40);
        change(&mut spec);
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        (
            PollSource::spawn(spec, Arc::clone(&index), Clock::system()),
            index,
        )
    }
}

fn event(id: u64, data: &Value) -> Value {
    json!({"event_id": id, "data": data, "window_size": 4096})
}

/// Returns an event that stores a root block of tokens `n, n, n, n` with engine hash `100 + n`.
fn stored(id: u64, n: u32) -> Value {
    let token = json!({"type": "unique_token", "token_id": n, "token_extra_id": 0});
    let tokens = vec![token; BLOCK as usize];
    let block = json!({"type": "stored_block", "block_hash": 100 + n, "tokens": tokens, "cache_level": 0, "priority": 35});
    event(
        id,
        &json!({"type": "stored", "parent_hash": null, "blocks": [block]}),
    )
}

fn removed(id: u64, n: u32) -> Value {
    event(id, &json!({"type": "removed", "block_hashes": [100 + n]}))
}

fn moved(id: u64, n: u32, from: u32, to: u32) -> Value {
    let level = json!({"type": "event_diff", "old_value": from, "new_value": to});
    event(
        id,
        &json!({"type": "updated", "block_hash": 100 + n, "cache_level": level, "priority": null}),
    )
}

#[tokio::test]
async fn polled_events_reach_the_index() {
    let engine = PolledEngine::start();
    engine.reply_events(&[
        event(
            0,
            &json!({"type": "created", "num_blocks_per_cache_level": [64, 16]}),
        ),
        stored(1, 1),
        stored(2, 2),
    ]);
    engine.reply_events(&[removed(3, 1), stored(4, 3)]);
    engine.reply_events(&[moved(5, 3, 0, 1)]);
    let (source, index) = engine.follow(|_| {});
    let report = until_resident(&source, &index, TARGET, &[(2, "device"), (3, "host")]).await;
    assert_eq!((&*report.source, report.worker.as_ref()), ("poll", "w3"));
    assert_eq!(
        report.endpoint,
        format!("http://{}/kv_cache_events", engine.port.address())
    );
    let report = until(&source, "the counts", |report| report.counts.events == 6).await;
    assert_eq!(
        (
            &*report.state,
            report.counts.batches,
            report.counts.applied,
            report.counts.ignored
        ),
        ("live", 3, 5, 1)
    );
    let counters = source.counters();
    assert_eq!((counters.stored, counters.removed), (4, 2));
    assert!(
        engine
            .head
            .lock()
            .starts_with("POST /kv_cache_events HTTP/1.1\r\n"),
        "{}",
        engine.head.lock()
    );
    source.stop().await;
}

#[tokio::test]
async fn skipped_numbers_clear_the_target() {
    let engine = PolledEngine::start();
    engine.reply_events(&[stored(0, 1), stored(1, 2)]);
    let (source, index) = engine.follow(|_| {});
    until_resident(&source, &index, TARGET, &[(1, "device"), (2, "device")]).await;
    engine.reply_events(&[stored(7, 3)]);
    until_resident(&source, &index, TARGET, &[(3, "device")]).await;
    let report = until(&source, "the gap", |report| report.counts.gaps == 1).await;
    assert_eq!(report.counts.restarts, 0);
    source.stop().await;
}

#[tokio::test]
async fn the_blocks_of_a_restarted_engine_are_cleared() {
    let engine = PolledEngine::start();
    engine.reply_events(&[stored(0, 1), stored(1, 2)]);
    let (source, index) = engine.follow(|_| {});
    until_resident(&source, &index, TARGET, &[(1, "device"), (2, "device")]).await;
    let port = Arc::clone(&engine.port);
    drop(engine);
    let report = until(&source, "the loss", |report| report.state == "connecting").await;
    assert!(report.last_error.unwrap().contains("cannot be reached"));
    let engine = loop {
        // The old listener closes when its task ends.
        if tokio::net::TcpStream::connect(port.address())
            .await
            .is_err()
        {
            break PolledEngine::on(port);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    engine.reply_events(&[stored(0, 9)]);
    until_resident(&source, &index, TARGET, &[(9, "device")]).await;
    let report = until(&source, "the restart", |report| report.counts.restarts == 1).await;
    assert_eq!((&*report.state, report.epoch), ("live", 2));
    source.stop().await;
}

#[tokio::test]
async fn an_answer_over_the_limit_is_not_read_and_clears_the_target() {
    let engine = PolledEngine::start();
    engine.reply_events(&[stored(0, 1)]);
    let (source, index) = engine.follow(|spec| spec.settings.max_message = 4096);
    until_resident(&source, &index, TARGET, &[(1, "device")]).await;
    engine.answers.lock().push_back((200, vec![b' '; 8192]));
    until_resident(&source, &index, TARGET, &[]).await;
    let report = until(&source, "the next answer", |report| {
        report.state == "live" && report.counts.dropped == 1
    })
    .await;
    assert!(report.last_error.unwrap().contains("more than 4096 bytes"));
    source.stop().await;
}

#[tokio::test]
async fn a_bad_list_is_counted_and_a_bad_event_is_skipped() {
    let engine = PolledEngine::start();
    for body in ["not json", "{}", "null", "[", &"[".repeat(100_000)] {
        engine
            .answers
            .lock()
            .push_back((200, body.as_bytes().to_vec()));
    }
    engine.reply_events(&[stored(0, 1), json!(5), stored(2, 2)]);
    let (source, index) = engine.follow(|_| {});
    until_resident(&source, &index, TARGET, &[(1, "device"), (2, "device")]).await;
    let report = until(&source, "the counts", |report| {
        report.counts.decode_errors == 6
    })
    .await;
    assert_eq!((&*report.state, report.counts.gaps), ("live", 0));
    source.stop().await;
}

#[tokio::test]
async fn an_engine_that_sends_only_garbage_is_quarantined() {
    let engine = PolledEngine::start();
    engine.reply_events(&[stored(0, 1)]);
    let (source, index) = engine.follow(|_| {});
    until_resident(&source, &index, TARGET, &[(1, "device")]).await;
    engine.reply_events(&vec![json!("garbage"); 100]);
    until_resident(&source, &index, TARGET, &[]).await;
    let report = until(&source, "the quarantine", |report| {
        report.state == "quarantined"
    })
    .await;
    assert_eq!(report.counts.decode_errors, 100);
    let requests = *engine.requests.borrow();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(*engine.requests.borrow(), requests);
    source.stop().await;
}

#[tokio::test]
async fn a_server_of_another_kind_is_named() {
    let engine = PolledEngine::start();
    engine.answers.lock().push_back((404, b"not here".to_vec()));
    let (source, _) = engine.follow(|_| {});
    let report = until(&source, "the refusal", |report| report.last_error.is_some()).await;
    let error = report.last_error.unwrap();
    assert!(
        error.contains("status 404") && error.contains("event_buffer_max_size"),
        "{error}"
    );
    until(&source, "an answer", |report| report.state == "live").await;
    source.stop().await;
}

#[tokio::test]
#[contract("S41")]
async fn after_events_an_answer_of_another_server_is_one_word_too() {
    for (status, body) in [(418, "a secret"), (200, "{}")] {
        let engine = PolledEngine::start();
        engine.reply_events(&[stored(0, 1)]);
        let (source, index) = engine.follow(|_| {});
        until_resident(&source, &index, TARGET, &[(1, "device")]).await;
        engine.answers.lock().push_back((status, body.into()));
        until(&source, "the error", |report| report.last_error.is_some()).await;
        engine.reply_events(&[stored(1, 2)]);
        until_resident(&source, &index, TARGET, &[(1, "device"), (2, "device")]).await;
        let told = source.reduced_report().last_error.unwrap();
        assert!(!told.contains([' ', '/']), "{told}");
        source.stop().await;
    }
}

#[tokio::test]
async fn each_rank_is_a_target() {
    let engine = PolledEngine::start();
    let of_rank = |mut event: Value, rank: u32| {
        event["attention_dp_rank"] = json!(rank);
        event
    };
    engine.reply_events(&[of_rank(stored(0, 1), 0), of_rank(stored(0, 2), 1)]);
    let (source, index) = engine.follow(|_| {});
    until_resident(&source, &index, TARGET, &[(1, "device")]).await;
    until_resident(
        &source,
        &index,
        Target {
            rank: DpRank(1),
            ..TARGET
        },
        &[(2, "device")],
    )
    .await;
    // A gap on one rank does not affect the other.
    engine.reply_events(&[of_rank(stored(9, 3), 1)]);
    until_resident(
        &source,
        &index,
        Target {
            rank: DpRank(1),
            ..TARGET
        },
        &[(3, "device")],
    )
    .await;
    assert_eq!(residency::resident(&index, TARGET), [(1, "device")]);
    source.stop().await;
}

#[tokio::test]
async fn an_idle_engine_is_polled_less_often() {
    let engine = PolledEngine::start();
    let (source, _) = engine.follow(|spec| {
        spec.interval = Duration::from_millis(10);
        spec.idle_interval = Duration::from_millis(400);
    });
    let clock = net::Clock::system();
    let begun = clock.now();
    // Polls at 0, 20, 60, 140, 300, 620, 1020 ms, later on a busy machine; at the first interval
    // the seventh would come after 60 ms.
    let mut requests = engine.requests.clone();
    tokio::time::timeout(PATIENCE, requests.wait_for(|requests| *requests >= 7))
        .await
        .expect("a poll comes")
        .unwrap();
    let took = clock.now().since(begun);
    assert!(took > Duration::from_millis(600), "seven polls in {took:?}");
    source.stop().await;
}
