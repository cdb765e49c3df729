//! The work of one step.

use std::time::Duration;

use crate::{EngineStats, EngineTiming, RequestId, profile::StepWork, sequence::Sequence};

/// A step that has begun.
#[derive(Debug)]
pub(crate) struct OpenStep {
    pub(crate) duration: Duration,
    /// In the order of the running sequences.
    pub(crate) chunks: Vec<ScheduledChunk>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduledChunk {
    pub(crate) id: RequestId,
    pub(crate) tokens: u32,
}

/// A step under construction.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    pub(crate) budget: u32,
    pub(crate) work: StepWork,
    pub(crate) chunks: Vec<ScheduledChunk>,
}

impl StepPlan {
    /// Adds `tokens` more tokens of a running sequence.
    pub(crate) fn add(
        &mut self,
        sequence: &Sequence,
        tokens: u32,
        timing: &EngineTiming,
        stats: &mut EngineStats,
    ) {
        self.budget = self.budget.saturating_sub(tokens);
        self.chunks.push(ScheduledChunk {
            id: sequence.id(),
            tokens,
        });
        if sequence.is_decoding() {
            self.work.decoding += 1;
            self.work.kv_tokens += u64::from(sequence.len());
        } else {
            self.work.prefill_ms +=
                timing.prefill_ms(sequence.computed, sequence.computed + tokens);
            stats.computed_tokens += u64::from(tokens);
        }
    }
}
