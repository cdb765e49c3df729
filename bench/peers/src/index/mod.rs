//! The indexes under test, behind one small trait.
//!
//! Each is called at its cheapest public entry. What an index needs in types of its own is made before a clock starts.

mod dynamo;
mod implementation;
mod ours;
mod smg;

use std::sync::Arc;

use crate::workload::{Span, TargetChange, Workload};

pub(crate) use dynamo::{Binary, Compressed, IndexerThread, Strided};
pub(crate) use implementation::{Implementation, with_index};
pub(crate) use ours::WarmrouteIndex;
pub(crate) use smg::SmgChain;

/// Queries answered together, where an index can do that.
pub(crate) const BATCH: usize = 16;

/// An index over which target holds which leading blocks.
pub(crate) trait Index: Send + Sync + Sized + 'static {
    /// The workload's prompts as this index takes them.
    type Prompts<'w>: Sync;
    /// One change as this index takes it.
    type Event<'w>;
    /// What belongs to the one lane that applies events.
    type Writer;
    /// What a query gives, in the index's own form. Used again for the next query.
    type Answer: Default + Send;

    /// An empty index for this many targets.
    fn empty(targets: usize) -> (Arc<Self>, Self::Writer);

    fn prompts(workload: &Workload) -> Self::Prompts<'_>;

    /// Reads every hash of the prompt that a query may need, and gives something that depends on all of them.
    fn read(prompts: &Self::Prompts<'_>, prompt: Span) -> u64;

    fn events<'w>(workload: &'w Workload, changes: &[TargetChange]) -> Vec<Self::Event<'w>>;

    /// Applies the events in order. It may take them out; what it leaves is dropped when the clock has stopped.
    fn apply(&self, writer: &mut Self::Writer, events: &mut Vec<Self::Event<'_>>);

    /// Waits until readers see everything that was applied.
    fn settle(&self, _writer: &mut Self::Writer) {}

    /// Replaces what is in `answer`.
    fn query(&self, prompts: &Self::Prompts<'_>, prompt: Span, answer: &mut Self::Answer);

    /// Answers up to [`BATCH`] queries, one after another unless the index knows better.
    fn query_batch(
        &self,
        prompts: &Self::Prompts<'_>,
        batch: &[Span],
        answers: &mut [Self::Answer],
    ) {
        for (prompt, answer) in batch.iter().zip(answers) {
            self.query(prompts, *prompt, answer);
        }
    }

    /// Adds every target that holds the first block, with the leading blocks it holds, in any order.
    fn pairs(answer: &Self::Answer, pairs: &mut Vec<(u32, u32)>);
}
