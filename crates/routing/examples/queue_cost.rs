//! What 10,000 waiting requests cost those that do not wait: 50 models with 20 workers each, all busy, of which one is
//! saturated and one is idle.
//!
//! ```sh
//! cargo run --release -p routing --features lock-observer --example queue_cost
//! ```
//!
//! First a newcomer's decision beside the queue and without it, in turns within one run; then how long the router's lock is
//! held while requests arrive, begin, end, are due and change their candidates, by the clock and by the processor's time of
//! the thread. The second is what the code costs; the first also has what other programs took. The last row is a fixed
//! computation that holds no lock and touches no memory: its longest time is what the machine adds to any of the others.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it is there to measure and to print"
)]

use std::{
    cell::RefCell,
    sync::Arc,
    time::{Duration, Instant},
};

use kv_blocks::{
    BlockSize, DpRank, HashScheme, Moment, Namespace, PromptBlocks, PromptIdentity, Target,
    WorkerId,
};
use kv_index::{IndexSettings, KvIndex};
use routing::{
    CacheSource, Candidate, Dispatch, ExpectedReply, Job, JobPrompt, LmcacheFacts, LockEvent,
    QueueSettings, ReservationId, Router, RoutingSettings, TargetPool, Ticket, Tiers, WaitBudget,
    observe_lock,
};
use rustix::time::{ClockId, clock_gettime};

const MODELS: u32 = 50;
const WORKERS: u32 = 20;
const WAITING: usize = 10_000;
const SATURATED: u32 = 0;
const IDLE: u32 = 1;
const DECISIONS: u32 = 4_000;
/// Blocks of a prompt of 1,024 tokens.
const BLOCKS: u32 = 64;

#[derive(Default)]
struct LockHolds {
    taken: Option<(Instant, Duration)>,
    during: &'static str,
    rows: Vec<LockHoldRow>,
}

/// The holds of one kind of call, by the clock and by the thread's processor time.
struct LockHoldRow {
    during: &'static str,
    wall_us: Vec<f64>,
    cpu_us: Vec<f64>,
}

thread_local! {
    static HOLDS: RefCell<LockHolds> = RefCell::default();
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

fn note(event: LockEvent) {
    HOLDS.with_borrow_mut(|holds| match event {
        LockEvent::Acquired => holds.taken = Some((Instant::now(), thread_cpu())),
        LockEvent::Released => {
            let cpu = thread_cpu();
            if let Some((then, before)) = holds.taken.take() {
                let wall_us = then.elapsed().as_secs_f64() * 1e6;
                let cpu_us = (cpu.saturating_sub(before)).as_secs_f64() * 1e6;
                let during = holds.during;
                let known = holds.rows.iter().position(|row| row.during == during);
                let row = known.unwrap_or_else(|| {
                    holds.rows.push(LockHoldRow {
                        during,
                        wall_us: Vec::new(),
                        cpu_us: Vec::new(),
                    });
                    holds.rows.len() - 1
                });
                holds.rows[row].wall_us.push(wall_us);
                holds.rows[row].cpu_us.push(cpu_us);
            }
        }
    });
}

fn main() {
    let (empty, full) = (QueueBench::new(0), QueueBench::new(WAITING));
    println!(
        "{} requests wait for model {SATURATED} of {MODELS}; {WORKERS} workers each",
        full.router.queued_requests()
    );
    println!("newcomer of         empty p50, us  full p50, us  ratio   (p99, us)");
    for (name, model) in [("an idle model", IDLE), ("the saturated one", SATURATED)] {
        newcomers(name, model, &empty, &full);
    }
    observe_lock(note);
    println!(
        "lock held during    holds   p50, us  p99.9, us  max, us | processor time: p99.9, us  p99.99, us  max, us"
    );
    full.traffic();
    full.change_candidates();
    let released = full.due();
    fixed_computations();
    lock_rows();
    println!(
        "{released} were released; {} wait",
        full.router.queued_requests()
    );
}

/// The same newcomers beside an empty queue and beside a full one, in turns.
fn newcomers(name: &str, model: u32, empty: &QueueBench, full: &QueueBench) {
    let mut took = [Vec::new(), Vec::new()];
    for i in 0..DECISIONS {
        let now = Moment::at(Duration::from_millis(100) + Duration::from_micros(u64::from(i)));
        for (bench, took) in [empty, full].into_iter().zip(&mut took) {
            let job = bench.job(model, i, Some(1));
            let started = Instant::now();
            let dispatch = bench.router.decide(now, &job);
            took.push(started.elapsed().as_secs_f64() * 1e6);
            match dispatch {
                Dispatch::Plan(plan) => {
                    assert_eq!(model, IDLE, "all workers of the other one are busy");
                    bench.router.done(now, plan.reservation);
                }
                Dispatch::Queued(ticket) => {
                    assert_eq!(model, SATURATED, "an idle model's request does not wait");
                    assert!(bench.router.cancel(ticket));
                }
                Dispatch::Refused(refusal) => panic!("{refusal}"),
            }
        }
    }
    let [empty_p50, full_p50] = [
        percentile(&mut took[0], 5_000),
        percentile(&mut took[1], 5_000),
    ];
    let p99 = [
        percentile(&mut took[0], 9_900),
        percentile(&mut took[1], 9_900),
    ];
    println!(
        "{name:18}  {empty_p50:13.2}  {full_p50:12.2}  {:5.2}   ({:.1}, {:.1})",
        full_p50 / empty_p50,
        p99[0],
        p99[1]
    );
}

/// Makes a call of the router and names it for the holds of its lock.
fn during<T>(name: &'static str, call: impl FnOnce() -> T) -> T {
    HOLDS.with_borrow_mut(|holds| holds.during = name);
    call()
}

/// As many as there are releases, and about as long as the 99.9th percentile of them.
fn fixed_computations() {
    for seed in 0..130_000_u64 {
        during("(computation)", || {
            note(LockEvent::Acquired);
            std::hint::black_box((0..40_000_u64).fold(seed, |sum, i| sum.rotate_left(5) ^ i));
            note(LockEvent::Released);
        });
    }
}

fn lock_rows() {
    HOLDS.with_borrow_mut(|holds| {
        for LockHoldRow {
            during,
            wall_us,
            cpu_us,
        } in &mut holds.rows
        {
            println!(
                "{during:18}  {:6}  {:7.2}  {:9.1}  {:7.1} | {:25.1}  {:10.1}  {:7.1}",
                wall_us.len(),
                percentile(wall_us, 5_000),
                percentile(wall_us, 9_990),
                percentile(wall_us, 10_000),
                percentile(cpu_us, 9_990),
                percentile(cpu_us, 9_999),
                percentile(cpu_us, 10_000),
            );
        }
    });
}

struct QueueBench {
    router: Router,
    /// By model.
    candidates: Vec<Vec<Candidate>>,
    prompts: Vec<Arc<PromptBlocks>>,
    /// What the workers of the saturated model have.
    open: Vec<ReservationId>,
    waiting: Vec<Ticket>,
}

impl QueueBench {
    fn new(waiting: usize) -> Self {
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        let candidates: Vec<Vec<Candidate>> = (0..MODELS).map(of_model).collect();
        let tokens = |prompt: u32| -> Arc<[u32]> {
            (0..BLOCKS * 16)
                .map(move |i| {
                    if i < BLOCKS * 8 {
                        i
                    } else {
                        i + prompt * 1_000_003
                    }
                })
                .collect()
        };
        let prompts: Vec<Arc<PromptBlocks>> = (0..256)
            .map(|prompt| {
                Arc::new(PromptBlocks::of_tokens(
                    HashScheme::default(),
                    tokens(prompt),
                ))
            })
            .collect();
        let queue = QueueSettings {
            max_entries: 2 * WAITING,
            ..QueueSettings::default()
        };
        let router = Router::new(
            RoutingSettings {
                queue,
                ..RoutingSettings::default()
            },
            index,
        );
        let mut bench = Self {
            router,
            candidates,
            prompts,
            open: Vec::new(),
            waiting: Vec::new(),
        };
        // Every worker but the idle model's has two prompts to compute.
        for model in (0..MODELS).filter(|model| *model != IDLE) {
            for i in 0..2 * WORKERS {
                let Dispatch::Plan(plan) = bench
                    .router
                    .decide(Moment::START, &bench.job(model, i, None))
                else {
                    panic!("it may not wait");
                };
                if model == SATURATED {
                    bench.open.push(plan.reservation);
                }
            }
        }
        for i in 0..waiting {
            let now = Moment::at(Duration::from_micros(i as u64));
            let i = u32::try_from(i).expect("a few");
            let Dispatch::Queued(ticket) = bench
                .router
                .decide(now, &bench.job(SATURATED, i, Some(i % 30 + 10)))
            else {
                panic!("all are busy");
            };
            bench.waiting.push(ticket);
        }
        bench
    }

    fn job(&self, model: u32, i: u32, limit_s: Option<u32>) -> Job<'_> {
        let prompt = &self.prompts[i as usize % self.prompts.len()];
        let wait_budget = |limit: u32| WaitBudget {
            limit: Duration::from_secs(limit.into()),
            waited: Duration::ZERO,
            bytes: 4_096,
        };
        Job {
            targets: TargetPool {
                candidates: &self.candidates[model as usize],
                ..TargetPool::default()
            },
            prompt: JobPrompt {
                blocks: Some(prompt),
                tokens: BLOCKS * 16,
                ..JobPrompt::default()
            },
            reply: ExpectedReply {
                max_tokens: Some(200),
                ..ExpectedReply::default()
            },
            wait_budget: limit_s.map(wait_budget),
            random: u64::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ..Job::default()
        }
    }

    /// First tokens, ends and arrivals of the saturated model, and arrivals of the idle one.
    fn traffic(&self) {
        let mut open = self.open.clone();
        for i in 0..DECISIONS {
            let now =
                Moment::at(Duration::from_millis(200) + Duration::from_micros(u64::from(i) * 500));
            let reservation = open.remove(0);
            let mut released = during("first token", || self.router.first_token(now, reservation));
            released.extend(during("end", || self.router.done(now, reservation)));
            while self
                .router
                .next_release(now)
                .is_some_and(|then| then <= now)
            {
                released.extend(during("release", || self.router.take_released(now)));
            }
            open.extend(released.iter().map(|released| released.plan.reservation));
            if let Dispatch::Plan(plan) = during("arrival", || {
                self.router.decide(now, &self.job(SATURATED, i, Some(60)))
            }) {
                open.push(plan.reservation);
            }
            let idle = during("idle arrival", || {
                self.router.decide(now, &self.job(IDLE, i, Some(60)))
            });
            let Dispatch::Plan(plan) = idle else {
                panic!("an idle model's request does not wait");
            };
            self.router.done(now, plan.reservation);
        }
    }

    /// A worker of the saturated model leaves, and every waiting request hears of it.
    fn change_candidates(&self) {
        let mut fewer = self.candidates[SATURATED as usize].clone();
        fewer.pop();
        let now = Moment::at(Duration::from_secs(3));
        for ticket in &self.waiting {
            let job = Job {
                targets: TargetPool {
                    candidates: &fewer,
                    ..TargetPool::default()
                },
                ..self.job(SATURATED, 0, Some(30))
            };
            during("changed candidates", || {
                self.router.replace_candidates(now, *ticket, &job)
            });
        }
    }

    /// All are overdue at once.
    fn due(&self) -> usize {
        let now = Moment::at(Duration::from_secs(100));
        let mut released = 0;
        while self
            .router
            .next_release(now)
            .is_some_and(|then| then <= now)
        {
            released += during("release of overdue", || {
                self.router.take_released(now).len()
            });
        }
        released
    }
}

fn of_model(model: u32) -> Vec<Candidate> {
    let namespace = Namespace {
        model: format!("m{model}").into(),
        lora: None,
        salt: None,
        block_size: BlockSize::new(16).expect("a block size"),
        identity: PromptIdentity::Tokens,
    };
    let candidate = |i: u32| Candidate {
        target: Target {
            worker: WorkerId(model * WORKERS + i),
            rank: DpRank(0),
        },
        name: format!("w{model}-{i}").into(),
        namespace: namespace.clone(),
        weight: 1.0,
        cache: CacheSource::Events,
        total_blocks: Some(60_000),
        tiers: Tiers::default(),
        stream_state: Some("live"),
        health: "ready",
        lmcache: LmcacheFacts::default(),
        usage: None,
        fetches: false,
    };
    (0..WORKERS).map(candidate).collect()
}

/// The value below which so many of ten thousand are.
fn percentile(values: &mut [f64], of_ten_thousand: usize) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values
        .get(values.len().saturating_sub(1) * of_ten_thousand / 10_000)
        .copied()
        .unwrap_or(0.0)
}
