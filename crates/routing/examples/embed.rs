//! The decision inside another program: a simulator of two engines that drives [`Router`] through everything it can say.
//!
//! ```sh
//! cargo run -p routing --example embed
//! ```
//!
//! There are no sockets, no threads and no clock: the caller says what time it is, tells the router what its engines
//! announce, and calls it when a first token or an end comes. What the router answers is all there is to do: send now,
//! keep until released, or refuse.
#![allow(clippy::print_stdout, reason = "it is there to print")]

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use kv_blocks::{
    BlockSize, DpRank, HashScheme, Moment, Namespace, PromptBlocks, PromptIdentity, Target,
    WorkerId,
};
use kv_index::{IndexSettings, KvIndex};
use routing::{
    CacheSource, Candidate, Dispatch, ExpectedReply, Job, JobPrompt, LmcacheFacts, Plan,
    ReleasedRequest, ReservationId, Router, RoutingSettings, TargetPool, Ticket, Tiers, WaitBudget,
};

/// What an engine takes to compute a token, and to generate a reply.
const TOKEN: Duration = Duration::from_micros(50);
const REPLY: Duration = Duration::from_millis(400);

fn main() {
    let mut fleet = EmbedFleet::new(2);
    // Six people ask about three documents, all within 60 ms; the third one is long.
    for (number, (document, tokens)) in [
        (1, 6_000),
        (2, 8_000),
        (1, 6_000),
        (3, 30_000),
        (1, 6_000),
        (2, 8_000),
    ]
    .into_iter()
    .enumerate()
    {
        fleet.at(
            10 * number as u64,
            EmbedEvent::Arrival {
                number,
                document,
                tokens,
            },
        );
    }
    fleet.play();
    assert_eq!(
        (
            fleet.router.open_reservations(),
            fleet.router.queued_requests()
        ),
        (0, 0),
        "every reservation was given back"
    );
}

/// What happens at a moment.
enum EmbedEvent {
    Arrival {
        number: usize,
        document: u32,
        tokens: u32,
    },
    FirstToken(ReservationId, usize),
    End(ReservationId, usize),
    /// Held requests may go though nobody says so.
    Look,
}

struct EmbedRequest {
    prompt: Arc<PromptBlocks>,
    tokens: u32,
}

struct EmbedFleet {
    router: Router,
    index: Arc<KvIndex>,
    candidates: Vec<Candidate>,
    /// What is to come, in order.
    agenda: BTreeMap<(Moment, usize), EmbedEvent>,
    entered: usize,
    requests: HashMap<usize, EmbedRequest>,
    queued: HashMap<Ticket, usize>,
    /// When each engine is through with the prompts it has.
    free_at: Vec<Moment>,
}

impl EmbedFleet {
    fn new(workers: u32) -> Self {
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        let namespace = Namespace {
            model: "m".into(),
            lora: None,
            salt: None,
            block_size: BlockSize::new(16).expect("a block size"),
            identity: PromptIdentity::Tokens,
        };
        let candidate = |number| Candidate {
            target: Target {
                worker: WorkerId(number),
                rank: DpRank(0),
            },
            name: format!("w{number}").into(),
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
        Self {
            router: Router::new(RoutingSettings::default(), Arc::clone(&index)),
            index,
            candidates: (0..workers).map(candidate).collect(),
            agenda: BTreeMap::new(),
            entered: 0,
            requests: HashMap::new(),
            queued: HashMap::new(),
            free_at: vec![Moment::START; workers as usize],
        }
    }

    fn at(&mut self, ms: u64, what: EmbedEvent) {
        self.put(Moment::at(Duration::from_millis(ms)), what);
    }

    fn put(&mut self, then: Moment, what: EmbedEvent) {
        self.entered += 1;
        self.agenda.insert((then, self.entered), what);
    }

    fn play(&mut self) {
        while let Some(((now, _), what)) = self.agenda.pop_first() {
            let released = match what {
                EmbedEvent::Arrival {
                    number,
                    document,
                    tokens,
                } => {
                    self.arrive(now, number, document, tokens);
                    Vec::new()
                }
                EmbedEvent::FirstToken(reservation, number) => {
                    println!("{:>5} ms  request {number}: first token", ms(now));
                    self.router.first_token(now, reservation)
                }
                EmbedEvent::End(reservation, number) => {
                    println!("{:>5} ms  request {number}: done", ms(now));
                    self.router.done(now, reservation)
                }
                EmbedEvent::Look => self.router.take_released(now),
            };
            self.send_all(now, released);
        }
    }

    fn arrive(&mut self, now: Moment, number: usize, document: u32, tokens: u32) {
        // The document, and a question of its own at the end.
        let question = u32::try_from(number).expect("a few requests");
        let prompt: Vec<u32> = (0..tokens)
            .map(|i| {
                if i < tokens - 100 {
                    document * 1_000_000 + i
                } else {
                    question
                }
            })
            .collect();
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
                tokens,
                ..JobPrompt::default()
            },
            reply: ExpectedReply {
                max_tokens: Some(100),
                ..ExpectedReply::default()
            },
            wait_budget: Some(WaitBudget {
                limit: Duration::from_secs(30),
                waited: Duration::ZERO,
                bytes: 0,
            }),
            random: number as u64,
            ..Job::default()
        };
        let dispatch = self.router.decide(now, &job);
        self.requests.insert(
            number,
            EmbedRequest {
                prompt: Arc::clone(&prompt),
                tokens,
            },
        );
        match dispatch {
            Dispatch::Plan(plan) => self.send(now, number, &plan),
            Dispatch::Queued(ticket) => {
                println!("{:>5} ms  request {number}: held", ms(now));
                self.queued.insert(ticket, number);
                // It may be its turn already.
                let released = self.router.take_released(now);
                self.send_all(now, released);
            }
            Dispatch::Refused(refusal) => {
                println!("{:>5} ms  request {number}: {refusal}", ms(now))
            }
        }
    }

    fn send_all(&mut self, now: Moment, mut released: Vec<ReleasedRequest>) {
        loop {
            for released in released {
                if let Some(number) = self.queued.remove(&released.ticket) {
                    self.send(now, number, &released.plan);
                }
            }
            match self.router.next_release(now) {
                // One call releases a few: there are more.
                Some(then) if then <= now => released = self.router.take_released(now),
                Some(then) => return self.put(then, EmbedEvent::Look),
                None => return,
            }
        }
    }

    /// What an engine would do: compute what it does not hold, in order, announce the blocks, and generate.
    fn send(&mut self, now: Moment, number: usize, plan: &Plan) {
        let target = plan.decode.target;
        let request = &self.requests[&number];
        let cached = plan.decision.winner.predicted_cached_tokens;
        println!(
            "{:>5} ms  request {number}: to w{}, {cached} of {} tokens warm",
            ms(now),
            target.worker.0,
            request.tokens
        );
        let engine = &mut self.free_at[target.worker.0 as usize];
        let first_token = (*engine).max(now) + TOKEN * (request.tokens - cached);
        *engine = first_token;
        // An engine's events would say this; who has none leaves it to the router's own expectation.
        let namespace = &self.candidates[target.worker.0 as usize].namespace;
        let chain = request.prompt.chain(namespace.block_size);
        self.index
            .predict(target, namespace, &chain, now, Duration::from_secs(600));
        self.put(
            first_token,
            EmbedEvent::FirstToken(plan.reservation, number),
        );
        self.put(
            first_token + REPLY,
            EmbedEvent::End(plan.reservation, number),
        );
    }
}

fn ms(now: Moment) -> u128 {
    now.since_start().as_millis()
}
