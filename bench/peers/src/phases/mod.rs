//! The measured phases of one index.
//!
//! - [`check`]: the workload step by step, answers compared with the oracle's; not timed.
//! - [`standing`]: the changes alone, then the queries against the state they leave.
//! - [`with_writer`]: one reader and one writer at once.
//! - [`memory`]: the memory of the state.

mod check;
mod loaded;
mod memory;
mod with_writer;

use crate::{
    index::Index,
    random::SplitMix64,
    workload::{Span, TargetChange, Workload},
};

pub(crate) use check::{Mismatch, check};
pub(crate) use loaded::change_rate;
pub(crate) use memory::{Memory, memory};
pub(crate) use with_writer::with_writer;

/// The two cores of the phases; the first runs single-threaded phases.
pub(crate) type Cores = [usize; 2];

/// A workload in the form of one index.
pub(crate) struct PreparedWorkload<'w, I: Index> {
    workload: &'w Workload,
    prompts: I::Prompts<'w>,
    measured: Vec<Span>,
}

impl<'w, I: Index> PreparedWorkload<'w, I> {
    pub(crate) fn new(workload: &'w Workload) -> Self {
        Self {
            workload,
            prompts: I::prompts(workload),
            measured: workload.measured_prompts(),
        }
    }

    /// The measured prompts in random order, a different one for each pass: the processor learns a
    /// repeated order.
    fn shuffled(&self, pass: usize) -> Vec<Span> {
        let mut order = self.measured.clone();
        SplitMix64::new(pass as u64).shuffle(&mut order);
        order
    }

    fn events(&self, changes: &[TargetChange]) -> Vec<I::Event<'w>> {
        I::events(self.workload, changes)
    }

    /// Returns an index in the state in which the measurement begins.
    fn warm(&self) -> (std::sync::Arc<I>, I::Writer) {
        let (index, mut writer) = I::empty(self.workload.targets);
        index.apply(&mut writer, &mut self.events(&self.workload.warm_changes()));
        index.settle(&mut writer);
        (index, writer)
    }
}
