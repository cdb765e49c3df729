//! What sharing by tenant costs a request that waits: its arrival in the queue, and its release, with 1,000 tenants that
//! all wait and with none. Prompts of one length wait in the order of their arrival, where the next one lies beside the
//! last one in memory; prompts of several lengths, as in traffic, do not, with one tenant neither.
//!
//! ```sh
//! cargo run --release -p routing --example fairness_cost
//! ```
//!
//! All are measured in turns within one run, since the machine does other things too.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it is there to measure and to print"
)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kv_blocks::{BlockSize, DpRank, Moment, Namespace, PromptIdentity, Target, WorkerId};
use kv_index::{IndexSettings, KvIndex};
use routing::{
    CacheSource, Candidate, Dispatch, ExpectedReply, Job, JobPrompt, JobTenant, LmcacheFacts,
    QueueSettings, ReservationId, Router, RoutingSettings, TargetPool, Tiers, WaitBudget,
};

const WORKERS: u32 = 8;
const TENANTS: usize = 1_000;
const WAITING: usize = 2_000;
/// Arrivals and releases of one turn, and turns.
const CALLS: usize = 2_000;
const TURNS: usize = 15;

struct Bench {
    router: Router,
    /// Lengths of prompts, in tokens: the least, and how many there are.
    lengths: (u32, u32),
    candidates: Vec<Candidate>,
    names: Vec<Arc<str>>,
    running: Vec<ReservationId>,
    sent: usize,
    now: Duration,
}

/// Mean times of one turn.
struct Times {
    arrival_us: f64,
    release_us: f64,
}

fn main() {
    println!("{WAITING} requests wait for {WORKERS} workers; medians of {TURNS} turns.");
    println!("| prompts, tokens | tenants | arrival, us | release, us | both, us |");
    println!("|--:|--:|--:|--:|--:|");
    for lengths in [(1_024, 1), (512, 1_025)] {
        compare(lengths);
    }
}

fn compare((least, number): (u32, u32)) {
    let lengths = (least, number);
    let mut benches = [Bench::new(0, lengths), Bench::new(TENANTS, lengths)];
    let mut times: [Vec<Times>; 2] = Default::default();
    for _ in 0..TURNS {
        for (bench, times) in benches.iter_mut().zip(&mut times) {
            times.push(bench.turn());
        }
    }
    let mut sums = Vec::new();
    for (bench, times) in benches.iter().zip(&times) {
        let median = |of: fn(&Times) -> f64| {
            let mut values: Vec<f64> = times.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let both = median(|times| times.arrival_us + times.release_us);
        println!(
            "| {least} to {} | {} | {:.2} | {:.2} | {both:.2} |",
            least + number - 1,
            bench.names.len().max(1),
            median(|times| times.arrival_us),
            median(|times| times.release_us),
        );
        sums.push(both);
    }
    println!(
        "Sharing adds {:.2} us to a request, {:.2} times.",
        sums[1] - sums[0],
        sums[1] / sums[0]
    );
}

impl Bench {
    fn new(tenants: usize, lengths: (u32, u32)) -> Self {
        let queue = QueueSettings {
            max_entries: 2 * WAITING,
            hold_above: Duration::ZERO,
            ..QueueSettings::default()
        };
        let settings = RoutingSettings {
            queue,
            ..RoutingSettings::default()
        };
        let mut bench = Self {
            router: Router::new(settings, Arc::new(KvIndex::new(IndexSettings::default()))),
            lengths,
            candidates: (1..=WORKERS).map(candidate).collect(),
            names: (0..tenants)
                .map(|number| format!("tenant-{number}").into())
                .collect(),
            running: Vec::new(),
            sent: 0,
            now: Duration::ZERO,
        };
        while bench.router.queued_requests() < WAITING {
            bench.arrive();
        }
        bench
    }

    fn now(&self) -> Moment {
        Moment::at(self.now)
    }

    fn arrive(&mut self) {
        self.sent += 1;
        // A stride without a common divisor: tenants come in no order.
        let name = self.names.get(self.sent * 7 % self.names.len().max(1));
        let random = (self.sent as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (least, number) = self.lengths;
        // The upper bits are the random ones.
        let tokens = least + ((random >> 32) as u32 % number);
        let job = Job {
            targets: TargetPool {
                candidates: &self.candidates,
                ..TargetPool::default()
            },
            // Nothing is cached: any worker can begin any of them.
            prompt: JobPrompt {
                tokens,
                ..JobPrompt::default()
            },
            reply: ExpectedReply {
                max_tokens: Some(200),
                ..ExpectedReply::default()
            },
            wait_budget: Some(WaitBudget {
                limit: Duration::from_secs(1 << 30),
                waited: Duration::ZERO,
                bytes: 4_096,
            }),
            tenant: name.map(|name| JobTenant {
                name,
                weight: 1.0,
                program: None,
                most_queued: Some(64),
                is_alone: false,
            }),
            random,
            ..Job::default()
        };
        if let Dispatch::Plan(plan) = self.router.decide(self.now(), &job) {
            self.running.push(plan.reservation);
        }
    }

    /// As many arrivals as releases.
    fn turn(&mut self) -> Times {
        let (mut arrival, mut release) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..CALLS {
            self.now += Duration::from_micros(500);
            let started = Instant::now();
            self.arrive();
            arrival += started.elapsed();
            let ended = self.running.remove(0);
            let started = Instant::now();
            let mut released = self.router.first_token(self.now(), ended);
            released.extend(self.router.done(self.now(), ended));
            while released.is_empty() && self.router.next_release(self.now()) == Some(self.now()) {
                released.extend(self.router.take_released(self.now()));
            }
            release += started.elapsed();
            self.running
                .extend(released.iter().map(|released| released.plan.reservation));
        }
        let us = |sum: Duration| sum.as_secs_f64() * 1e6 / CALLS as f64;
        Times {
            arrival_us: us(arrival),
            release_us: us(release),
        }
    }
}

fn candidate(worker: u32) -> Candidate {
    Candidate {
        target: Target {
            worker: WorkerId(worker),
            rank: DpRank(0),
        },
        name: format!("w{worker}").into(),
        namespace: Namespace {
            model: "m".into(),
            lora: None,
            salt: None,
            block_size: BlockSize::new(16).expect("a block size"),
            identity: PromptIdentity::Tokens,
        },
        weight: 1.0,
        cache: CacheSource::Events,
        total_blocks: None,
        tiers: Tiers::default(),
        stream_state: Some("live"),
        health: "ready",
        lmcache: LmcacheFacts::default(),
        usage: None,
        fetches: false,
    }
}
