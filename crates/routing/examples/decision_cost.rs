//! What a decision costs beside the lookup in the index, by number of candidates; prompts of 8,192 blocks.
//!
//! ```sh
//! cargo run --release -p routing --example decision_cost [live_set]
//! ```
//!
//! `live_set` switches `routing.admission` on: the decision then includes the record of each request's blocks.
//!
//! Each row plays the same requests: `lookup` asks the index alone, `decide` is the whole of [`Router::decide`] with that
//! lookup in it, `beside` what is left of it. Two requests per target are in flight. The last column is the median of a
//! first token while 300 requests are held: how long that keeps the router's lock.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it is there to measure and to print"
)]

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use kv_blocks::{
    BlockSize, DpRank, HashScheme, Moment, Namespace, PromptBlocks, PromptIdentity, Target,
    WorkerId,
};
use kv_index::{IndexSettings, KvIndex};
use routing::{
    AdmissionMode, CacheSource, Candidate, Dispatch, ExpectedReply, Job, JobPrompt, LmcacheFacts,
    Router, RoutingSettings, TargetPool, Tiers, WaitBudget,
};

const BLOCKS: u32 = 8_192;
const BLOCK_TOKENS: u32 = 16;
const PROMPTS: u32 = 24;
const DECISIONS: u32 = 3_000;

fn main() {
    println!(
        "candidates  lookup p50  decide p50  beside p50  p99, us  first token beside a long queue, us"
    );
    for candidates in [8, 64, 256, 1_000] {
        row(candidates);
    }
}

fn settings() -> RoutingSettings {
    let mut settings = RoutingSettings::default();
    if std::env::args().any(|argument| argument == "live_set") {
        settings.section.admission = AdmissionMode::LiveSet;
    }
    settings
}

fn row(count: u32) {
    let bench = DecisionBench::new(count);
    let router = Router::new(settings(), Arc::clone(&bench.index));
    let (mut lookups, mut decisions) = (Vec::new(), Vec::new());
    let mut open = VecDeque::new();
    for i in 0..DECISIONS {
        let now = bench.now(i);
        let prompt = &bench.prompts[(i % PROMPTS) as usize];
        let chain = prompt.chain(bench.namespace.block_size);
        lookups.push(timed(|| bench.index.lookup(&bench.namespace, &chain, now)).1);
        let (dispatch, took) = timed(|| router.decide(now, &bench.job(prompt, u64::from(i), None)));
        decisions.push(took);
        let Dispatch::Plan(plan) = dispatch else {
            panic!("nobody may wait")
        };
        router.first_token(now + Duration::from_millis(20), plan.reservation);
        open.push_back(plan.reservation);
        if open.len() > 2 * count as usize
            && let Some(done) = open.pop_front()
        {
            router.done(now, done);
        }
    }
    let mut beside: Vec<f64> = decisions
        .iter()
        .zip(&lookups)
        .map(|(all, lookup)| all - lookup)
        .collect();
    let long_queue = bench.first_token_beside_a_long_queue();
    println!(
        "{count:10}  {:10.1}  {:10.1}  {:10.1}  {:7.1}  {long_queue:10.1}",
        percentile(&mut lookups, 50),
        percentile(&mut decisions, 50),
        percentile(&mut beside, 50),
        percentile(&mut beside, 99),
    );
}

struct DecisionBench {
    index: Arc<KvIndex>,
    namespace: Namespace,
    candidates: Vec<Candidate>,
    prompts: Vec<Arc<PromptBlocks>>,
}

impl DecisionBench {
    /// All prompts share their first half, which every second target holds; a prompt's other half has one holder.
    fn new(count: u32) -> Self {
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        let namespace = Namespace {
            model: "m".into(),
            lora: None,
            salt: None,
            block_size: BlockSize::new(BLOCK_TOKENS.into()).expect("a block size"),
            identity: PromptIdentity::Tokens,
        };
        let candidate = |i: u32| Candidate {
            target: Target {
                worker: WorkerId(i),
                rank: DpRank(0),
            },
            name: format!("w{i}").into(),
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
        let candidates: Vec<Candidate> = (0..count).map(candidate).collect();
        let tokens = |prompt: u32| -> Arc<[u32]> {
            let shared = BLOCKS * BLOCK_TOKENS / 2;
            (0..BLOCKS * BLOCK_TOKENS)
                .map(move |i| {
                    if i < shared {
                        i
                    } else {
                        i + prompt * 1_000_003
                    }
                })
                .collect()
        };
        let prompts: Vec<_> = (0..PROMPTS)
            .map(|prompt| {
                Arc::new(PromptBlocks::of_tokens(
                    HashScheme::default(),
                    tokens(prompt),
                ))
            })
            .collect();
        // What is predicted for long enough counts as what is announced would.
        let long = Duration::from_secs(1_000_000);
        for (i, prompt) in prompts.iter().enumerate() {
            let chain = prompt.chain(namespace.block_size);
            index.predict(
                candidates[i % candidates.len()].target,
                &namespace,
                &chain,
                Moment::START,
                long,
            );
        }
        let shared = prompts[0].chain(namespace.block_size);
        for candidate in candidates.iter().step_by(2) {
            index.predict(
                candidate.target,
                &namespace,
                &shared[..(BLOCKS / 2) as usize],
                Moment::START,
                long,
            );
        }
        Self {
            index,
            namespace,
            candidates,
            prompts,
        }
    }

    fn now(&self, i: u32) -> Moment {
        Moment::at(Duration::from_millis(u64::from(i) * 40))
    }

    fn job<'a>(
        &'a self,
        prompt: &'a Arc<PromptBlocks>,
        random: u64,
        wait_budget: Option<WaitBudget>,
    ) -> Job<'a> {
        Job {
            targets: TargetPool {
                candidates: &self.candidates,
                ..TargetPool::default()
            },
            prompt: JobPrompt {
                blocks: Some(prompt),
                tokens: BLOCKS * BLOCK_TOKENS,
                ..JobPrompt::default()
            },
            reply: ExpectedReply {
                max_tokens: Some(200),
                ..ExpectedReply::default()
            },
            wait_budget,
            random,
            ..Job::default()
        }
    }

    /// Every target is busy and 300 requests are held.
    fn first_token_beside_a_long_queue(&self) -> f64 {
        let router = Router::new(settings(), Arc::clone(&self.index));
        let now = self.now(DECISIONS);
        let wait_budget = |_| {
            Some(WaitBudget {
                limit: Duration::from_secs(60),
                waited: Duration::ZERO,
                bytes: 1,
            })
        };
        let mut open = Vec::new();
        let mut queued = 0;
        for i in 0..100_000u32 {
            let prompt = &self.prompts[(i % PROMPTS) as usize];
            match router.decide(now, &self.job(prompt, u64::from(i), wait_budget(i))) {
                Dispatch::Plan(plan) => open.push(plan.reservation),
                Dispatch::Queued(_) => queued += 1,
                Dispatch::Refused(_) => panic!("there is room"),
            }
            if queued == 300 {
                break;
            }
        }
        let mut took = Vec::new();
        for (i, reservation) in (0u32..20).zip(open) {
            let then = now + Duration::from_millis(u64::from(i));
            took.push(timed(|| router.first_token(then, reservation)).1);
        }
        percentile(&mut took, 50)
    }
}

fn timed<T>(call: impl FnOnce() -> T) -> (T, f64) {
    let started = Instant::now();
    let result = call();
    (result, started.elapsed().as_secs_f64() * 1e6)
}

fn percentile(values: &mut [f64], share: usize) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[(values.len() - 1) * share / 100]
}
