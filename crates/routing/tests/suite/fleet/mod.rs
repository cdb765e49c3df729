//! A router, an index and a few workers, with short functions for tests.

use std::{sync::Arc, time::Duration};

use kv_blocks::{
    BlockSize, DpRank, EngineHash, HashScheme, IndexUpdate, Moment, Namespace, PromptBlocks,
    PromptIdentity, StoredBlocks, Target, Tier, WorkerId,
};
use kv_index::{IndexSettings, KvIndex};
use routing::{
    Affinity, CacheSource, Candidate, Decision, Dispatch, ExcludedTarget, ExpectedReply, Job,
    JobAffinity, JobPrompt, JobSlo, JobTenant, LmcacheFacts, NoStopwatch, Overrides, Pin, Plan,
    Policy, PotentialLoad, PrefillPool, PrefixHolder, Refusal, ReplyMode, Router, RoutingSettings,
    SessionKeys, TargetPool, Tiers, WaitBudget,
};

pub(crate) const BLOCK: u32 = 16;

pub(crate) fn at_ms(ms: u64) -> Moment {
    Moment::at(Duration::from_millis(ms))
}

pub(crate) fn target(worker: u32) -> Target {
    Target {
        worker: WorkerId(worker),
        rank: DpRank(0),
    }
}

pub(crate) fn block_size() -> BlockSize {
    BlockSize::new(BLOCK.into()).expect("16 is a block size")
}

pub(crate) fn namespace() -> Namespace {
    Namespace {
        model: "m".into(),
        lora: None,
        salt: None,
        block_size: block_size(),
        identity: PromptIdentity::Tokens,
    }
}

pub(crate) fn candidate(worker: u32) -> Candidate {
    Candidate {
        target: target(worker),
        name: format!("w{worker}").into(),
        namespace: namespace(),
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

/// `blocks` blocks of tokens unique to `topic`.
pub(crate) fn tokens(topic: u32, blocks: u32) -> Vec<u32> {
    (0..blocks * BLOCK).map(|i| topic * 1_000_000 + i).collect()
}

/// A prompt and its client's options.
#[derive(Clone)]
pub(crate) struct TestRequest {
    pub(crate) tokens: Vec<u32>,
    pub(crate) policy: Option<Policy>,
    pub(crate) pin: Option<Pin>,
    pub(crate) overrides: Overrides,
    pub(crate) random: u64,
    pub(crate) output: Option<u32>,
    pub(crate) answer: ReplyMode,
    pub(crate) slo: JobSlo,
    pub(crate) wait_budget: Option<WaitBudget>,
    pub(crate) time_left: Option<Duration>,
    pub(crate) affinity: Affinity,
    pub(crate) session: Option<Arc<SessionKeys>>,
    pub(crate) prefix_holders: Option<Vec<PrefixHolder>>,
    pub(crate) tenant: Option<TestTenant>,
}

/// A tenant.
#[derive(Clone)]
pub(crate) struct TestTenant {
    pub(crate) name: Arc<str>,
    pub(crate) weight: f64,
    pub(crate) program: Option<u64>,
    pub(crate) most_queued: Option<usize>,
    pub(crate) is_alone: bool,
}

pub(crate) fn tenant(name: &str) -> TestTenant {
    TestTenant {
        name: name.into(),
        weight: 1.0,
        program: None,
        most_queued: None,
        is_alone: true,
    }
}

pub(crate) fn test_request(tokens: Vec<u32>) -> TestRequest {
    TestRequest {
        tokens,
        policy: None,
        pin: None,
        overrides: Overrides::default(),
        random: 1,
        output: None,
        answer: ReplyMode::Streamed,
        slo: JobSlo::default(),
        wait_budget: None,
        time_left: None,
        affinity: Affinity::default(),
        session: None,
        prefix_holders: None,
        tenant: None,
    }
}

/// A request with only a prefix key, given by its first eight bytes.
pub(crate) fn with_prefix(key: u64) -> TestRequest {
    let mut digest = [0xa5; 32];
    digest[..8].copy_from_slice(&key.to_be_bytes());
    TestRequest {
        affinity: Affinity {
            prefix_key: Some(digest),
            ..Affinity::default()
        },
        ..test_request(Vec::new())
    }
}

/// A request with only a session.
pub(crate) fn in_session(key: u64) -> TestRequest {
    TestRequest {
        affinity: Affinity {
            session_key: Some(key),
            ..Affinity::default()
        },
        ..test_request(Vec::new())
    }
}

/// Pseudo-random numbers, the same in every run.
pub(crate) struct TestRandom(pub(crate) u64);

impl TestRandom {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.roll() % end as u64).expect("below a usize")
    }

    pub(crate) fn shuffle<T>(&mut self, things: &mut [T]) {
        for i in (1..things.len()).rev() {
            things.swap(i, self.below(i + 1));
        }
    }
}

/// A pool of prefill workers.
#[derive(Default)]
pub(crate) struct PrefillWorkers {
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) excluded: Vec<ExcludedTarget>,
    pub(crate) policy: Option<Policy>,
    pub(crate) threshold: u32,
}

impl PrefillWorkers {
    fn as_pool(&self) -> PrefillPool<'_> {
        PrefillPool {
            targets: TargetPool {
                candidates: &self.candidates,
                excluded: &self.excluded,
                policy: self.policy,
            },
            uncached_token_threshold: self.threshold,
        }
    }
}

pub(crate) struct TestFleet {
    pub(crate) router: Router,
    pub(crate) index: Arc<KvIndex>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) excluded: Vec<ExcludedTarget>,
    /// The prefill workers, if any.
    pub(crate) pool: Option<PrefillWorkers>,
    pub(crate) stored: std::cell::Cell<u64>,
    pub(crate) busy_threshold: Option<f64>,
}

impl TestFleet {
    /// `workers` workers, numbered from 1.
    pub(crate) fn new(workers: u32, settings: RoutingSettings) -> Self {
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        for worker in 1..=workers {
            index.register(target(worker), "m".into());
        }
        Self {
            router: Router::new(settings, Arc::clone(&index)),
            index,
            candidates: (1..=workers).map(candidate).collect(),
            excluded: Vec::new(),
            pool: None,
            stored: std::cell::Cell::new(0),
            busy_threshold: None,
        }
    }

    pub(crate) fn with(workers: u32, policy: Policy) -> Self {
        Self::new(
            workers,
            RoutingSettings {
                policy,
                ..RoutingSettings::default()
            },
        )
    }

    /// `worker` announces the blocks of `tokens` in `tier`.
    pub(crate) fn stored(&self, worker: u32, tokens: &[u32], tier: Tier) {
        let whole = tokens.len() / block_size().len() * block_size().len();
        let blocks = (whole / block_size().len()) as u64;
        let first = self.stored.replace(self.stored.get() + blocks);
        let update = IndexUpdate::Stored(StoredBlocks {
            hashes: (0..blocks).map(|i| EngineHash(first + i)).collect(),
            parent: None,
            tokens: tokens[..whole].to_vec(),
            block_size: block_size(),
            lora: None,
            media: Vec::new(),
            salt: None,
            tier,
        });
        assert_eq!(
            u64::from(self.index.apply(target(worker), &update).applied),
            blocks
        );
    }

    pub(crate) fn dispatch(&self, now: Moment, request: &TestRequest) -> Dispatch {
        self.with_job(request, |job| self.router.decide(now, job))
    }

    /// The decision for `request`, without changing any state.
    pub(crate) fn preview(&self, now: Moment, request: &TestRequest) -> Result<Decision, Refusal> {
        self.with_job(request, |job| self.router.preview(now, job))
    }

    pub(crate) fn potential_loads(&self, now: Moment, request: &TestRequest) -> Vec<PotentialLoad> {
        self.with_job(request, |job| self.router.potential_loads(now, job))
            .expect("a target is eligible")
    }

    pub(crate) fn with_job<T>(&self, request: &TestRequest, act: impl FnOnce(&Job<'_>) -> T) -> T {
        let blocks = Arc::new(PromptBlocks::of_tokens(
            HashScheme::default(),
            request.tokens.clone().into(),
        ));
        act(&Job {
            targets: TargetPool {
                candidates: &self.candidates,
                excluded: &self.excluded,
                policy: request.policy,
            },
            prefill: self.pool.as_ref().map(PrefillWorkers::as_pool),
            pin: request.pin,
            prompt: JobPrompt {
                blocks: Some(&blocks),
                tokens: blocks.token_count(),
                ..JobPrompt::default()
            },
            affinity: JobAffinity {
                keys: request.affinity,
                session: request.session.as_ref(),
                prefix_holders: request.prefix_holders.as_deref(),
            },
            reply: ExpectedReply {
                mode: request.answer,
                max_tokens: request.output,
                slo: request.slo,
            },
            overrides: request.overrides,
            busy_threshold: self.busy_threshold,
            wait_budget: request.wait_budget,
            time_left: request.time_left,
            tenant: request.tenant.as_ref().map(|tenant| JobTenant {
                name: &tenant.name,
                weight: tenant.weight,
                program: tenant.program,
                most_queued: tenant.most_queued,
                is_alone: tenant.is_alone,
            }),
            random: request.random,
            stopwatch: &NoStopwatch,
        })
    }

    pub(crate) fn plan(&self, now: Moment, request: &TestRequest) -> Plan {
        match self.dispatch(now, request) {
            Dispatch::Plan(plan) => *plan,
            other => panic!("expected a plan, got {other:?}"),
        }
    }

    /// The worker that `request` goes to; it stays in flight.
    pub(crate) fn goes_to(&self, now: Moment, request: &TestRequest) -> u32 {
        self.plan(now, request).decode.target.worker.0
    }

    /// The name of the worker that `request` would go to; nothing is in flight for it.
    pub(crate) fn would_go_to(&self, request: &TestRequest) -> Arc<str> {
        self.preview(Moment::START, request)
            .expect("a target is eligible")
            .winner
            .name
    }

    /// Sends `count` equal prompts at once; returns how many each worker got.
    pub(crate) fn burst(&self, count: u64, request: &TestRequest) -> Vec<usize> {
        let mut per_worker = vec![0; self.candidates.len()];
        for random in 0..count {
            let request = TestRequest {
                random: random.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                ..request.clone()
            };
            per_worker[self.goes_to(Moment::START, &request) as usize - 1] += 1;
        }
        per_worker
    }
}
