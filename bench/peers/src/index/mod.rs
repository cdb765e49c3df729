//! The indexes under test, behind one small trait.
//!
//! Each is called at its cheapest public entry point. Values of an index's own types are created
//! before the clock starts.

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

/// Number of queries in a batch, for indexes with batch lookups.
pub(crate) const BATCH: usize = 16;

/// An index of targets and their leading blocks.
pub(crate) trait Index: Send + Sync + Sized + 'static {
    /// The workload's prompts in the form of this index.
    type Prompts<'w>: Sync;
    /// One change in the form of this index.
    type Event<'w>;
    /// The state of the single lane that applies events.
    type Writer;
    /// The answer of a query, in the index's own form; reused for the next query.
    type Answer: Default + Send;

    /// Returns an empty index for this many targets.
    fn empty(targets: usize) -> (Arc<Self>, Self::Writer);

    fn prompts(workload: &Workload) -> Self::Prompts<'_>;

    /// Reads every hash of the prompt that a query may need, and returns a value that depends on
    /// all of them.
    fn read(prompts: &Self::Prompts<'_>, prompt: Span) -> u64;

    fn events<'w>(workload: &'w Workload, changes: &[TargetChange]) -> Vec<Self::Event<'w>>;

    /// Applies the events in order. It may take them out; the remaining ones are dropped after the
    /// clock stops.
    fn apply(&self, writer: &mut Self::Writer, events: &mut Vec<Self::Event<'_>>);

    /// Waits until readers see all applied events.
    fn settle(&self, _writer: &mut Self::Writer) {}

    /// Replaces the content of `answer`.
    fn query(&self, prompts: &Self::Prompts<'_>, prompt: Span, answer: &mut Self::Answer);

    /// Answers up to [`BATCH`] queries, one after another unless the index has a batch lookup.
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

    /// Adds every target that holds the first block, with the leading blocks it holds, in any
    /// order.
    fn pairs(answer: &Self::Answer, pairs: &mut Vec<(u32, u32)>);
}
