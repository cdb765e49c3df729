//! What load sync costs two replicas: processor time, bytes, and the longest hold of the router's
//! lock.
//!
//! ```sh
//! cargo run --release -p replicas --features lock-observer --example exchange_cost -- nats://127.0.0.1:4222
//! ```
//!
//! Two routers in one process take 2,000 requests a second each, over a real NATS server, once with
//! load sync and once without, in turn; the difference of the processor time, halved, is what one
//! replica spends on sending its changes and on taking those of the other. Prompts have 1,000
//! tokens; the last row has conversations of 32,000, whose turns add 500.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "it is there to measure and to print"
)]

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use config::{ReplicaMode, ReplicasSection};
use kv_blocks::{
    BlockSize, DpRank, HashScheme, Namespace, PromptBlocks, PromptIdentity, Target, WorkerId,
};
use kv_index::{IndexSettings, KvIndex};
use nats_client::{NatsDialer, SharedConnection};
use net::{Clock, Destinations};
use prometheus_client::{encoding::text::encode, registry::Registry};
use replicas::{
    LoadSink, NoteQueue, ReplicaIdentity, ReplicaParts, Replicas, SharedNote, WorkerDirectory,
};
use routing::{
    CacheSource, Candidate, Dispatch, ExpectedReply, Job, JobPrompt, LmcacheFacts, LockEvent,
    ReleasedRequest, ReplyMode, ReservationId, Router, RoutingSettings, TargetPool, Tiers,
    observe_lock,
};
use rustix::time::{ClockId, clock_gettime};
use tikv_jemallocator::Jemalloc;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

const WORKERS: u32 = 8;
/// Requests a second of each router.
const RATE: u32 = 2_000;
/// Requests that wait for their first token in each router: 50 ms of them, at the full rate.
const PREFILLING: usize = 100;
/// Requests that run at a time in each router.
const RUNNING: usize = 2_000;
const ROUND: Duration = Duration::from_secs(10);
const ROUNDS: usize = 3;
const BLOCK: u64 = 16;

/// The longest hold of the router's lock, ns: by the exchange, and by decisions.
static LONGEST_NS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

thread_local! {
    static TAKEN: RefCell<Option<Duration>> = const { RefCell::new(None) };
    /// Whether this thread makes the requests.
    static DECIDES: Cell<bool> = const { Cell::new(false) };
}

fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

fn note(event: LockEvent) {
    let now = cpu(ClockId::ThreadCPUTime);
    TAKEN.with_borrow_mut(|taken| match event {
        LockEvent::Acquired => *taken = Some(now),
        LockEvent::Released => {
            if let Some(before) = taken.take() {
                let held = u64::try_from((now - before).as_nanos()).unwrap_or(u64::MAX);
                LONGEST_NS[usize::from(DECIDES.get())].fetch_max(held, Ordering::Relaxed);
            }
        }
    });
}

#[derive(Debug)]
struct Names;

impl WorkerDirectory for Names {
    fn name(&self, worker: WorkerId) -> Option<Arc<str>> {
        Some(format!("worker-{}", worker.0).into())
    }

    fn id(&self, name: &str) -> Option<WorkerId> {
        name.strip_prefix("worker-")?.parse().ok().map(WorkerId)
    }
}

#[derive(Debug)]
struct Nowhere;

impl LoadSink for Nowhere {
    fn released(&self, _: Vec<ReleasedRequest>) {}

    fn note(&self, _: SharedNote) {}

    fn routers(&self, _: u32) {}

    fn copy_index(&self) -> std::io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn memberships(&self) -> u64 {
        0
    }

    fn index_digest(&self) -> u64 {
        0
    }
}

/// A router and its exchange, if it has one.
struct Replica {
    router: Arc<Router>,
    replicas: Replicas,
    registry: Registry,
    candidates: Vec<Candidate>,
    prefilling: VecDeque<ReservationId>,
    running: VecDeque<ReservationId>,
    number: u64,
}

/// The prompts of one kind.
#[derive(Clone, Copy)]
struct Prompts {
    name: &'static str,
    /// Tokens of a new conversation.
    first: u64,
    /// Tokens that a turn adds, and turns of a conversation.
    added: u64,
    turns: u64,
    rate: u32,
}

impl Replica {
    fn start(id: u64, load_sync: bool, bus: &Arc<SharedConnection>) -> Self {
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        let router = Arc::new(Router::new(RoutingSettings::default(), index));
        let mut registry = Registry::default();
        let parts = ReplicaParts {
            settings: ReplicasSection {
                mode: ReplicaMode::Nats,
                namespace: "exchange_cost".to_owned(),
                load_sync,
                ..ReplicasSection::default()
            },
            identity: ReplicaIdentity {
                id,
                address: String::new(),
                program: "example",
                settings: 0,
            },
            router: Arc::clone(&router),
            workers: Arc::new(Names),
            sink: Arc::new(Nowhere),
            notes: NoteQueue::default(),
            bus: Some(Arc::clone(bus)),
            token: None,
            clock: Clock::system(),
        };
        Self {
            router,
            replicas: Replicas::start(parts, &mut registry).unwrap(),
            registry,
            candidates: (0..WORKERS).map(candidate).collect(),
            prefilling: VecDeque::new(),
            running: VecDeque::new(),
            number: id << 32,
        }
    }

    /// Begins a request; the oldest one without a first token gets it, and the oldest of all ends,
    /// if there are enough.
    fn request(&mut self, clock: Clock, prompts: Prompts) {
        let (conversation, turn) = (self.number / prompts.turns, self.number % prompts.turns);
        self.number += 1;
        let tokens = prompts.first + turn * prompts.added;
        let prompt = (0..tokens)
            .map(|token| u32::try_from((conversation * 1_000_003 + token) & 0xffff).unwrap_or(0));
        let prompt: Vec<u32> = prompt.collect();
        let prompt = Arc::new(PromptBlocks::of_tokens(
            HashScheme::default(),
            prompt.into(),
        ));
        let job = Job {
            targets: TargetPool {
                candidates: &self.candidates,
                ..TargetPool::default()
            },
            prompt: JobPrompt {
                blocks: Some(&prompt),
                tokens: u32::try_from(tokens).unwrap(),
                ..JobPrompt::default()
            },
            reply: ExpectedReply {
                mode: ReplyMode::Streamed,
                ..ExpectedReply::default()
            },
            random: self.number,
            ..Job::default()
        };
        let now = clock.now();
        if let Dispatch::Plan(plan) = self.router.decide(now, &job) {
            self.prefilling.push_back(plan.reservation);
        }
        if self.prefilling.len() > PREFILLING
            && let Some(oldest) = self.prefilling.pop_front()
        {
            self.router.first_token(now, oldest);
            self.running.push_back(oldest);
        }
        if self.running.len() > RUNNING
            && let Some(oldest) = self.running.pop_front()
        {
            self.router.done(now, oldest);
            self.router.record_reply_length(200);
        }
    }

    /// Bytes sent so far.
    fn sent_bytes(&self) -> f64 {
        let mut page = String::new();
        encode(&mut page, &self.registry).unwrap();
        let line = page
            .lines()
            .find(|line| line.starts_with("warmroute_replica_bytes_total{direction=\"sent\"}"));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok())
            .unwrap_or(0.0)
    }
}

fn candidate(number: u32) -> Candidate {
    Candidate {
        target: Target {
            worker: WorkerId(number),
            rank: DpRank(0),
        },
        name: format!("worker-{number}").into(),
        namespace: Namespace {
            model: "m".into(),
            lora: None,
            salt: None,
            block_size: BlockSize::new(BLOCK).unwrap(),
            identity: PromptIdentity::Tokens,
        },
        weight: 1.0,
        cache: CacheSource::Events,
        total_blocks: Some(60_000),
        tiers: Tiers::default(),
        stream_state: Some("live"),
        health: "ready",
        lmcache: LmcacheFacts::default(),
        usage: None,
        fetches: false,
    }
}

/// One round's figures, for both replicas together.
struct Round {
    cpu: Duration,
    /// The part of the thread that makes the requests.
    requests: Duration,
    bytes: f64,
    agree: bool,
}

impl Round {
    fn add_times(&self, to: &mut [f64; 2]) {
        for (sum, time) in to.iter_mut().zip([self.cpu, self.requests]) {
            *sum += time.as_secs_f64();
        }
    }
}

async fn round(load_sync: bool, buses: &[Arc<SharedConnection>; 2], prompts: Prompts) -> Round {
    let [one, other] = buses;
    let mut pair = [
        Replica::start(1, load_sync, one),
        Replica::start(2, load_sync, other),
    ];
    tokio::time::sleep(Duration::from_secs(2)).await;
    let clock = Clock::system();
    let before = [ClockId::ProcessCPUTime, ClockId::ThreadCPUTime].map(cpu);
    let start = Instant::now();
    let (mut done, pace) = (0_u32, Duration::from_millis(1));
    let mut ticks = tokio::time::interval(pace);
    while start.elapsed() < ROUND {
        ticks.tick().await;
        let due = start.elapsed().as_secs_f64() * f64::from(prompts.rate);
        while f64::from(done) < due {
            pair.iter_mut()
                .for_each(|replica| replica.request(clock, prompts));
            done += 1;
        }
    }
    let [cpu, requests] = [
        cpu(ClockId::ProcessCPUTime) - before[0],
        cpu(ClockId::ThreadCPUTime) - before[1],
    ];
    let bytes = pair.iter().map(Replica::sent_bytes).sum();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let agree = pair.iter().all(|replica| {
        let replicas = replica.replicas.report().replicas;
        replicas.len() == 2 && replicas[1].counted_requests == replicas[1].open_requests
    });
    for replica in &pair {
        replica.replicas.stop().await;
    }
    Round {
        cpu,
        requests,
        bytes,
        agree,
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let server = std::env::args().nth(1);
    let server = server.expect("the URL of a NATS server, such as nats://127.0.0.1:4222");
    let dialer = NatsDialer {
        server: server.parse().unwrap(),
        credentials: None,
        trust: None,
        destinations: Destinations::Any,
        name: "exchange_cost".to_owned(),
    };
    // A connection does not deliver what is published over it.
    let buses =
        [dialer.clone(), dialer].map(|dialer| SharedConnection::spawn(dialer, Clock::system()));
    for bus in &buses {
        let mut state = bus.watch();
        let connected = state.wait_for(|state| state.client.is_some()).await;
        assert!(connected.is_ok());
    }
    DECIDES.set(true);
    observe_lock(note);
    println!(
        "two replicas, {} s a round, {ROUNDS} rounds of each, in turn",
        ROUND.as_secs()
    );
    println!(
        "prompts                  requests/s   % of a core   of it, requests   MB/s sent   longest lock hold, ms of processor time: exchange   decision   loads agree"
    );
    for prompts in [
        Prompts {
            name: "1,000 tokens",
            first: 1_000,
            added: 0,
            turns: 1,
            rate: RATE,
        },
        Prompts {
            name: "32,000 + 500 a turn",
            first: 32_000,
            added: 500,
            turns: 20,
            rate: 200,
        },
    ] {
        let (mut with, mut without) = ([0.0; 2], [0.0; 2]);
        let (mut bytes, mut agree) = (0.0, true);
        LONGEST_NS
            .iter()
            .for_each(|longest| longest.store(0, Ordering::Relaxed));
        for _ in 0..ROUNDS {
            round(false, &buses, prompts).await.add_times(&mut without);
            let synced = round(true, &buses, prompts).await;
            synced.add_times(&mut with);
            bytes += synced.bytes;
            agree &= synced.agree;
        }
        let seconds = ROUND.as_secs_f64() * ROUNDS as f64;
        let [share, of_requests] =
            [0, 1].map(|at| (with[at] - without[at]) / seconds / 2.0 * 100.0);
        let [exchange, decision] = LONGEST_NS
            .each_ref()
            .map(|longest| longest.load(Ordering::Relaxed) as f64 / 1e6);
        println!(
            "{:<24} {:>10}   {:>11.1}   {:>15.1}   {:>9.2}   {:>50.3}   {:>8.3}   {:>11}",
            prompts.name,
            prompts.rate,
            share,
            of_requests,
            bytes / seconds / 2.0 / 1e6,
            exchange,
            decision,
            agree
        );
    }
}
