//! Changes without queries, then queries without changes.

use std::{hint::black_box, sync::Arc};

use crate::{
    clock,
    index::{BATCH, Index},
    samples::Samples,
    workload::{Span, TargetChange},
};

use super::PreparedWorkload;

/// Repeatable changes are repeated for this long: fast ones would end before the clock advances.
const LEAST_CHANGING_S: f64 = 0.2;

/// An index that has applied every change of the workload, and its lane.
pub(crate) struct LoadedIndex<'p, 'w, I: Index> {
    prepared: &'p PreparedWorkload<'w, I>,
    index: Arc<I>,
    /// Kept alive, because its drop may end the index's own thread.
    _writer: I::Writer,
}

/// Applies the measured changes to a warm index. Returns blocks per second of CPU time, stored and
/// removed, and the index.
pub(crate) fn change_rate<'p, 'w, I: Index>(
    prepared: &'p PreparedWorkload<'w, I>,
) -> (f64, LoadedIndex<'p, 'w, I>) {
    let changes = prepared.workload.measured_changes();
    let blocks: usize = changes.iter().map(TargetChange::blocks).sum();
    let (index, mut writer) = prepared.warm();
    let (mut applied, mut seconds) = (0, 0.0);
    loop {
        let mut events = prepared.events(&changes);
        let start = clock::process_cpu_s();
        index.apply(&mut writer, &mut events);
        index.settle(&mut writer);
        seconds += clock::process_cpu_s() - start;
        applied += blocks;
        if !prepared.workload.cyclic || seconds >= LEAST_CHANGING_S {
            break;
        }
    }
    (
        applied as f64 / seconds,
        LoadedIndex {
            prepared,
            index,
            _writer: writer,
        },
    )
}

impl<I: Index> LoadedIndex<'_, '_, I> {
    /// Runs the queries one after another, each timed.
    pub(crate) fn queries(&self, passes: usize) -> Samples {
        self.timed(
            passes,
            |_| (),
            |prompt, answer| {
                self.index.query(&self.prepared.prompts, prompt, answer);
            },
        )
    }

    /// The same, with the answer copied into a list of pairs.
    pub(crate) fn queries_as_pairs(&self, passes: usize) -> Samples {
        let mut pairs = Vec::with_capacity(self.prepared.workload.targets);
        self.timed(
            passes,
            |_| (),
            |prompt, answer| {
                self.index.query(&self.prepared.prompts, prompt, answer);
                pairs.clear();
                I::pairs(answer, &mut pairs);
                black_box(&pairs);
            },
        )
    }

    /// The same, with the prompt's hashes in the processor's cache, as if just computed.
    pub(crate) fn queries_of_hot_prompts(&self, passes: usize) -> Samples {
        self.timed(
            passes,
            |prompt| {
                black_box(I::read(&self.prepared.prompts, prompt));
            },
            |prompt, answer| {
                self.index.query(&self.prepared.prompts, prompt, answer);
            },
        )
    }

    fn timed(
        &self,
        passes: usize,
        before: impl Fn(Span),
        mut query: impl FnMut(Span, &mut I::Answer),
    ) -> Samples {
        let mut samples = Samples::with_capacity(self.prepared.measured.len() * passes);
        let mut answer = I::Answer::default();
        for pass in 0..passes {
            for prompt in self.prepared.shuffled(pass) {
                before(prompt);
                let start = clock::ticks();
                query(prompt, &mut answer);
                samples.push(clock::ticks() - start);
            }
        }
        black_box(&answer);
        samples
    }

    /// Returns queries per second of CPU time, in batches.
    pub(crate) fn batched_rate(&self, passes: usize) -> f64 {
        let mut answers: Vec<I::Answer> = (0..BATCH).map(|_| I::Answer::default()).collect();
        let mut seconds = 0.0;
        for pass in 0..passes {
            let order = self.prepared.shuffled(pass);
            let start = clock::thread_cpu_s();
            for batch in order.chunks(BATCH) {
                self.index
                    .query_batch(&self.prepared.prompts, batch, &mut answers[..batch.len()]);
            }
            seconds += clock::thread_cpu_s() - start;
        }
        black_box(&answers);
        (self.prepared.measured.len() * passes) as f64 / seconds
    }
}
