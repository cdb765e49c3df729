//! The fleet: engines, and how the router knows them.

use std::{sync::Arc, time::Duration};

use engine_model::{
    Engine, EngineSettings, EngineTiming, NamedRequest, NextAction, Scheduling, StepOutcome,
    SubmitError,
};
use kv_blocks::{BlockSize, DpRank, Moment, Namespace, PromptIdentity, Target, WorkerId};
use routing::{Candidate, LmcacheFacts, Tiers};

use crate::Cell;

/// Most sequences in a batch and most tokens in a step, as in the comparisons whose figures can be checked.
const MAX_SEQUENCES: u32 = 256;
const MAX_BATCHED_TOKENS: u32 = 8192;

/// The engines of one cell.
#[derive(Debug)]
pub(crate) struct Engines {
    engines: Vec<ModelledEngine>,
    pub(crate) candidates: Vec<Candidate>,
}

#[derive(Debug)]
struct ModelledEngine {
    engine: Engine,
    stepping: bool,
    /// When it is to be looked at again.
    wake_at: Option<Moment>,
}

/// What an engine does from now on, where that has to be put down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextWake {
    /// A step began that takes so long.
    Step(Duration),
    /// It has to be looked at then.
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
                })
                .collect(),
            candidates: (0..cell.workers)
                .map(|number| candidate(cell, number, namespace, blocks))
                .collect(),
        }
    }

    pub(crate) fn submit(
        &mut self,
        worker: usize,
        now: Moment,
        request: NamedRequest,
    ) -> Result<(), SubmitError> {
        self.engines[worker].engine.submit_named(now, request)
    }

    /// Lets an engine that does nothing begin a step, if it has anything to do.
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
            // Once is enough.
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

    /// Prompt tokens that each engine has computed.
    pub(crate) fn computed_tokens(&self) -> Vec<u64> {
        self.engines
            .iter()
            .map(|modelled| modelled.engine.stats().computed_tokens)
            .collect()
    }

    pub(crate) fn target(&self, worker: usize) -> Target {
        self.candidates[worker].target
    }

    /// Whose target it is.
    pub(crate) fn worker(&self, target: Target) -> Option<usize> {
        self.candidates
            .iter()
            .position(|candidate| candidate.target == target)
    }
}

/// Where all engines keep their blocks.
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
    let slow = cell.mishaps.slow.iter().find(|slow| slow.worker == number);
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
    }
}
