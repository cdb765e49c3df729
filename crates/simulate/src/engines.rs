//! The fleet: the engines, and the router's candidates for them.

use std::{sync::Arc, time::Duration};

use engine_model::{
    Engine, EngineSettings, EngineTiming, FetchedPrefix, NamedRequest, NextAction, Scheduling,
    StepOutcome, SubmitError,
};
use kv_blocks::{
    BlockSize, DpRank, EngineHash, Moment, Namespace, PromptIdentity, Target, WorkerId,
};
use routing::{Candidate, LmcacheFacts, Tiers};

use crate::{Cell, FetchLink};

/// Most sequences in a batch and most tokens in a step, as in the published comparisons, so that
/// their figures can be checked.
const MAX_SEQUENCES: u32 = 256;
const MAX_BATCHED_TOKENS: u32 = 8192;

/// The engines of one cell.
#[derive(Debug)]
pub(crate) struct Engines {
    engines: Vec<ModelledEngine>,
    pub(crate) candidates: Vec<Candidate>,
    link: Option<FetchLink>,
    block_tokens: u32,
}

#[derive(Debug)]
struct ModelledEngine {
    engine: Engine,
    stepping: bool,
    /// Time of its next scheduled wake-up.
    wake_at: Option<Moment>,
    /// Time from which its connection to the others is free.
    link_free_at: Moment,
}

/// An engine's next event, if it must be scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextWake {
    /// A step began and takes this long.
    Step(Duration),
    /// The engine must be woken at this time.
    Wake(Moment),
}

impl Engines {
    pub(crate) fn new(cell: &Cell, namespace: &Namespace) -> Self {
        let blocks = cell.profile.kv_tokens / namespace.block_size.tokens();
        Self {
            engines: (0..cell.workers)
                .map(|number| ModelledEngine {
                    engine: Engine::new(settings(cell, number, namespace.block_size, blocks)),
                    stepping: false,
                    wake_at: None,
                    link_free_at: Moment::START,
                })
                .collect(),
            candidates: (0..cell.workers)
                .map(|number| candidate(cell, number, namespace, blocks))
                .collect(),
            link: cell.fetch,
            block_tokens: namespace.block_size.tokens(),
        }
    }

    /// Begins to read the leading blocks of a prompt that `to` lacks from `from`; returns what it will
    /// have then. `None`: engines do not read from each other.
    pub(crate) fn fetch(
        &mut self,
        now: Moment,
        (from, to): (Target, Target),
        names: &[EngineHash],
    ) -> Option<FetchedPrefix> {
        let link = self.link?;
        let (from, to) = (self.worker(from)?, self.worker(to)?);
        let held = |worker: usize| self.engines[worker].engine.held_blocks(names);
        let (sent, own) = (held(from), held(to));
        let tokens_in = |blocks: usize| blocks as u64 * u64::from(self.block_tokens);
        let transfer = link.transfer(tokens_in(sent.saturating_sub(own)));
        let ends = [from, to].map(|worker| self.engines[worker].link_free_at);
        let end = ends.into_iter().fold(now, Moment::max) + transfer;
        let tokens = u32::try_from(tokens_in(sent)).unwrap_or(u32::MAX);
        for worker in [from, to] {
            self.engines[worker].link_free_at = end;
        }
        Some(FetchedPrefix {
            tokens,
            time: end.since(now) + link.floor,
        })
    }

    pub(crate) fn submit(
        &mut self,
        worker: usize,
        now: Moment,
        request: NamedRequest,
    ) -> Result<(), SubmitError> {
        self.engines[worker].engine.submit_named(now, request)
    }

    /// Starts a step on an idle engine, if it has work.
    pub(crate) fn start_idle(&mut self, worker: usize, now: Moment) -> Option<NextWake> {
        let modelled = &mut self.engines[worker];
        if modelled.stepping {
            return None;
        }
        match modelled.engine.begin(now) {
            NextAction::Step(length) => {
                modelled.stepping = true;
                Some(NextWake::Step(length))
            }
            // One wake-up is enough.
            NextAction::WaitUntil(then) => {
                (modelled.wake_at.replace(then) != Some(then)).then_some(NextWake::Wake(then))
            }
            NextAction::Idle => None,
        }
    }

    /// Ends a step.
    pub(crate) fn finish(&mut self, worker: usize) -> StepOutcome {
        let modelled = &mut self.engines[worker];
        modelled.stepping = false;
        modelled.engine.finish()
    }

    /// Returns the prompt tokens that each engine has computed.
    pub(crate) fn computed_tokens(&self) -> Vec<u64> {
        self.engines
            .iter()
            .map(|modelled| modelled.engine.stats().computed_tokens)
            .collect()
    }

    pub(crate) fn target(&self, worker: usize) -> Target {
        self.candidates[worker].target
    }

    /// Returns the engine of a target.
    pub(crate) fn worker(&self, target: Target) -> Option<usize> {
        self.candidates
            .iter()
            .position(|candidate| candidate.target == target)
    }
}

/// Returns the namespace of all engines' blocks.
pub(crate) fn namespace(block_size: BlockSize) -> Namespace {
    Namespace {
        model: Arc::from("simulated"),
        lora: None,
        salt: None,
        block_size,
        identity: PromptIdentity::Tokens,
    }
}

fn settings(cell: &Cell, number: u32, block_size: BlockSize, device_blocks: u32) -> EngineSettings {
    let slow = cell.faults.slow.iter().find(|slow| slow.worker == number);
    EngineSettings {
        block_size,
        device_blocks,
        host_blocks: 0,
        prefix_caching: true,
        max_num_seqs: MAX_SEQUENCES,
        max_num_batched_tokens: MAX_BATCHED_TOKENS,
        allocation: cell.allocation,
        scheduling: if cell.engine_priority {
            Scheduling::Priority
        } else {
            Scheduling::Arrival
        },
        timing: EngineTiming::new(cell.profile).speed(slow.map_or(1.0, |slow| 1.0 / slow.times)),
        seed: cell.seed,
        alphabet: Arc::default(),
    }
}

fn candidate(cell: &Cell, number: u32, namespace: &Namespace, blocks: u32) -> Candidate {
    Candidate {
        target: Target {
            worker: WorkerId(number),
            rank: DpRank(0),
        },
        name: format!("w{}", number + 1).into(),
        namespace: namespace.clone(),
        weight: 1.0,
        cache: cell.cache,
        total_blocks: Some(blocks),
        tiers: Tiers::default(),
        stream_state: Some("live"),
        health: "ready",
        lmcache: LmcacheFacts::default(),
        usage: None,
        fetches: cell.fetch.is_some(),
    }
}
