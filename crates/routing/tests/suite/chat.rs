//! Virtual engines and chat users: does `warm` keep conversations on the engine with their cache?
//!
//! Everything runs in virtual time from fixed seeds: same code, same figures.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    time::Duration,
};

use kv_blocks::{
    EngineHash, HashScheme, IndexUpdate, Moment, RemovedBlocks, SequenceHash, StoredBlocks, Tier,
};
use routing::{Policy, ReservationId};

use crate::fleet::{self, BLOCK, TestFleet, TestRequest, target, test_request};

const WORKERS: u32 = 4;
const CACHE_BLOCKS: usize = 1000;
const PREFILL_US_PER_TOKEN: u64 = 200;
const OVERHEAD_US: u64 = 3_000;
const DECODE_US_PER_TOKEN: u64 = 5_000;
const CONVERSATIONS: u32 = 64;
const TURNS: u32 = 8;
const SYSTEM_PROMPTS: u32 = 3;

/// An engine: prefill in order, a cache of blocks with the least recently used evicted, decode at a
/// fixed pace.
#[derive(Default)]
struct ChatEngine {
    free_at_us: u64,
    /// Last use of each block, and the reverse map.
    cached: HashMap<SequenceHash, u64>,
    by_use: BTreeMap<u64, SequenceHash>,
    uses: u64,
}

impl ChatEngine {
    fn matched(&self, chain: &[SequenceHash]) -> usize {
        chain
            .iter()
            .take_while(|hash| self.cached.contains_key(hash))
            .count()
    }

    fn touch(&mut self, hash: SequenceHash) {
        self.uses += 1;
        if let Some(before) = self.cached.insert(hash, self.uses) {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.uses, hash);
    }

    /// Caches `chain`; returns the number of blocks known before and the evicted ones.
    fn cache(&mut self, chain: &[SequenceHash]) -> (usize, Vec<SequenceHash>) {
        let known = self.matched(chain);
        // Ends of sequences go first, so the last block is the least recently used.
        chain.iter().rev().for_each(|hash| self.touch(*hash));
        let mut evicted = Vec::new();
        while self.cached.len() > CACHE_BLOCKS {
            let (_, hash) = self.by_use.pop_first().expect("as many uses as blocks");
            self.cached.remove(&hash);
            evicted.push(hash);
        }
        (known, evicted)
    }
}

enum ChatEvent {
    Request {
        person: u32,
    },
    Computed {
        worker: u32,
        request: TurnRequest,
    },
    Answered {
        person: u32,
        reservation: ReservationId,
    },
}

struct TurnRequest {
    person: u32,
    tokens: Vec<u32>,
    chain: Vec<SequenceHash>,
    reservation: ReservationId,
    sent_us: u64,
}

struct ChatUser {
    history: Vec<u32>,
    turn: u32,
}

#[derive(Debug)]
struct ChatFigures {
    prompt_tokens: u64,
    hit_tokens: u64,
    predicted_exactly: u32,
    requests: u32,
    ttft_ms: f64,
    per_worker: Vec<u32>,
}

impl ChatFigures {
    fn hit_ratio(&self) -> f64 {
        self.hit_tokens as f64 / self.prompt_tokens as f64
    }
}

struct ChatSimulation {
    fleet: TestFleet,
    engines: Vec<ChatEngine>,
    people: Vec<ChatUser>,
    agenda: BinaryHeap<Reverse<(u64, u64)>>,
    events: HashMap<u64, ChatEvent>,
    planned: u64,
    dice: u64,
    figures: ChatFigures,
}

impl ChatSimulation {
    fn new(policy: Policy, seed: u64) -> Self {
        let mut town = Self {
            fleet: TestFleet::with(WORKERS, policy),
            engines: (0..WORKERS).map(|_| ChatEngine::default()).collect(),
            people: Vec::new(),
            agenda: BinaryHeap::new(),
            events: HashMap::new(),
            planned: 0,
            dice: seed,
            figures: ChatFigures {
                prompt_tokens: 0,
                hit_tokens: 0,
                predicted_exactly: 0,
                requests: 0,
                ttft_ms: 0.0,
                per_worker: vec![0; WORKERS as usize],
            },
        };
        for person in 0..CONVERSATIONS {
            let system = fleet::tokens(900 + person % SYSTEM_PROMPTS, 6);
            town.people.push(ChatUser {
                history: system,
                turn: 0,
            });
            let begins_us = town.roll(20_000_000);
            town.plan(begins_us, ChatEvent::Request { person });
        }
        town
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % sides
    }

    fn roll_small(&mut self, sides: u32) -> u32 {
        u32::try_from(self.roll(sides.into())).expect("below its sides")
    }

    fn person(&mut self, person: u32) -> &mut ChatUser {
        &mut self.people[person as usize]
    }

    fn plan(&mut self, at_us: u64, event: ChatEvent) {
        self.planned += 1;
        self.events.insert(self.planned, event);
        self.agenda.push(Reverse((at_us, self.planned)));
    }

    fn run(mut self) -> ChatFigures {
        while let Some(Reverse((now_us, number))) = self.agenda.pop() {
            match self.events.remove(&number).expect("planned once") {
                ChatEvent::Request { person } => self.send(now_us, person),
                ChatEvent::Computed { worker, request } => self.computed(now_us, worker, request),
                ChatEvent::Answered {
                    person,
                    reservation,
                } => self.answered(now_us, person, reservation),
            }
        }
        assert_eq!(self.fleet.router.open_reservations(), 0);
        self.figures.ttft_ms /= f64::from(self.figures.requests);
        self.figures
    }

    fn send(&mut self, now_us: u64, person: u32) {
        let (topic, words) = (self.roll_small(1 << 20), 30 + self.roll_small(60));
        self.person(person)
            .history
            .extend((0..words).map(|word| topic * 1024 + word));
        let tokens = self.person(person).history.clone();
        let random = self.roll(u64::MAX);
        let plan = self.fleet.plan(
            at(now_us),
            &TestRequest {
                random,
                ..test_request(tokens.clone())
            },
        );
        let worker = plan.decode.target.worker.0;
        let engine = &mut self.engines[worker as usize - 1];

        // The engine takes and matches prompts in order: all earlier ones are computed by then.
        let size = fleet::block_size();
        let chain = HashScheme::default().chain(None, &tokens, size);
        let most = (tokens.len() - 1) / BLOCK as usize;
        let hit_tokens = engine.matched(&chain).min(most) * BLOCK as usize;
        let (known, evicted) = engine.cache(&chain);
        let computed = (tokens.len() - hit_tokens) as u64;
        engine.free_at_us = engine.free_at_us.max(now_us) + computed * PREFILL_US_PER_TOKEN;
        let done_us = engine.free_at_us + OVERHEAD_US;
        self.publish(worker, &tokens, &chain, known, evicted);

        self.figures.prompt_tokens += tokens.len() as u64;
        self.figures.hit_tokens += hit_tokens as u64;
        self.figures.predicted_exactly +=
            u32::from(plan.decision.winner.predicted_cached_tokens as usize == hit_tokens);
        self.figures.per_worker[worker as usize - 1] += 1;
        let request = TurnRequest {
            person,
            tokens,
            chain,
            reservation: plan.reservation,
            sent_us: now_us,
        };
        self.plan(done_us, ChatEvent::Computed { worker, request });
    }

    /// Publishes the engine's events for a cached prompt.
    fn publish(
        &self,
        worker: u32,
        tokens: &[u32],
        chain: &[SequenceHash],
        known: usize,
        evicted: Vec<SequenceHash>,
    ) {
        let name = |hash: &SequenceHash| EngineHash(hash.0);
        if known < chain.len() {
            let stored = StoredBlocks {
                hashes: chain[known..].iter().map(name).collect(),
                parent: known.checked_sub(1).map(|last| name(&chain[last])),
                tokens: tokens[known * BLOCK as usize..chain.len() * BLOCK as usize].to_vec(),
                block_size: fleet::block_size(),
                lora: None,
                media: Vec::new(),
                salt: None,
                tier: Tier::Device,
            };
            self.fleet
                .index
                .apply(target(worker), &IndexUpdate::Stored(stored));
        }
        if !evicted.is_empty() {
            let removed = RemovedBlocks {
                hashes: evicted.iter().map(name).collect(),
                tier: Tier::Device,
            };
            self.fleet
                .index
                .apply(target(worker), &IndexUpdate::Removed(removed));
        }
    }

    fn computed(&mut self, now_us: u64, worker: u32, request: TurnRequest) {
        self.fleet
            .router
            .first_token(at(now_us), request.reservation);
        self.figures.requests += 1;
        self.figures.ttft_ms += (now_us - request.sent_us) as f64 / 1e3;
        // The answer fills blocks too, and becomes part of the conversation.
        let (topic, words) = (self.roll_small(1 << 20), 20 + self.roll_small(80));
        let answer: Vec<u32> = (0..words)
            .map(|word| (1 << 31) | (topic * 1024 + word))
            .collect();
        let TurnRequest {
            person,
            mut tokens,
            chain,
            reservation,
            ..
        } = request;
        tokens.extend(&answer);
        let size = fleet::block_size();
        let longer = HashScheme::default().chain(None, &tokens, size);
        assert!(longer.starts_with(&chain));
        let (known, evicted) = self.engines[worker as usize - 1].cache(&longer);
        self.publish(worker, &tokens, &longer, known, evicted);
        self.person(person).history = tokens;
        self.plan(
            now_us + u64::from(words) * DECODE_US_PER_TOKEN,
            ChatEvent::Answered {
                person,
                reservation,
            },
        );
    }

    fn answered(&mut self, now_us: u64, person: u32, reservation: ReservationId) {
        self.fleet.router.done(at(now_us), reservation);
        self.person(person).turn += 1;
        if self.person(person).turn < TURNS {
            let thinks_us = 500_000 + self.roll(3_000_000);
            self.plan(now_us + thinks_us, ChatEvent::Request { person });
        }
    }
}

fn at(us: u64) -> Moment {
    Moment::at(Duration::from_micros(us))
}

#[test]
fn chats_under_warm_have_half_again_the_hits_and_a_lower_ttft() {
    for seed in 1..=5 {
        let blind = ChatSimulation::new(Policy::RoundRobin, seed).run();
        let warm = ChatSimulation::new(Policy::Warm, seed).run();
        assert_eq!(warm.requests, CONVERSATIONS * TURNS);
        assert!(
            warm.hit_ratio() >= 1.5 * blind.hit_ratio(),
            "{warm:?} against {blind:?}"
        );
        assert!(warm.ttft_ms < blind.ttft_ms, "{warm:?} against {blind:?}");
        let most = warm.per_worker.iter().max().expect("there are workers");
        assert!(*most <= CONVERSATIONS * TURNS / 2, "{warm:?}");
        // Three system prompts, four workers: the fourth worker's cache is also used.
        let least = warm.per_worker.iter().min().expect("there are workers");
        assert!(*least >= CONVERSATIONS * TURNS / 20, "{warm:?}");
    }
}

#[test]
fn the_routers_predictions_equal_the_engines_cached_tokens() {
    for policy in Policy::ALL {
        let figures = ChatSimulation::new(policy, 3).run();
        assert_eq!(
            figures.predicted_exactly, figures.requests,
            "{policy}: {figures:?}"
        );
    }
}

#[test]
fn equal_seeds_give_equal_figures() {
    let figures = || format!("{:?}", ChatSimulation::new(Policy::Warm, 7).run());
    assert_eq!(figures(), figures());
}
