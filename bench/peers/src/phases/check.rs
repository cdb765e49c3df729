//! The workload in its own order, with answers compared with the oracle's.

use crate::{
    index::{BATCH, Index},
    oracle::ExpectedOverlaps,
    workload::{Span, Workload, WorkloadStep},
};

/// A wrong answer.
#[derive(Debug, thiserror::Error)]
#[error(
    "step {step}, a prompt of {blocks} blocks asked {how}: got {got} where {expected} is right (target and leading blocks \
     of the first that differ)"
)]
pub(crate) struct Mismatch {
    step: usize,
    blocks: usize,
    how: &'static str,
    got: String,
    expected: String,
}

/// Applies every step and compares the answers to the queries in `expected`, alone and in a batch
/// of the latest prompts. Returns the number of compared answers.
///
/// # Errors
/// The first answer that differs from the oracle's.
pub(crate) fn check<I: Index>(
    workload: &Workload,
    expected: &[ExpectedOverlaps],
) -> Result<usize, Mismatch> {
    let (index, mut writer) = I::empty(workload.targets);
    let prompts = I::prompts(workload);
    let mut expected = expected.iter().peekable();
    let mut latest: Vec<Span> = vec![];
    let mut answers: Vec<I::Answer> = (0..BATCH).map(|_| I::Answer::default()).collect();
    let mut compared = 0;
    for (step, what) in workload.steps.iter().enumerate() {
        let prompt = match *what {
            WorkloadStep::Change(change) => {
                index.apply(&mut writer, &mut I::events(workload, &[change]));
                continue;
            }
            WorkloadStep::Query(chain) => workload.span(chain),
        };
        if latest.len() == BATCH {
            latest.remove(0);
        }
        latest.push(prompt);
        let Some(right) = expected.next_if(|right| right.step == step) else {
            continue;
        };
        index.settle(&mut writer);
        let wrong = |how, got: Option<(u32, u32)>, expected: Option<(u32, u32)>| {
            let show = |pair: Option<(u32, u32)>| {
                pair.map_or("nothing".into(), |pair| format!("{pair:?}"))
            };
            Mismatch {
                step,
                blocks: prompt.len,
                how,
                got: show(got),
                expected: show(expected),
            }
        };
        index.query_batch(&prompts, &latest, &mut answers[..latest.len()]);
        let batched = sorted::<I>(&answers[latest.len() - 1]);
        compare(&batched, &right.pairs)
            .map_err(|(got, expected)| wrong("in a batch", got, expected))?;
        index.query(&prompts, prompt, &mut answers[0]);
        let alone = sorted::<I>(&answers[0]);
        compare(&alone, &right.pairs).map_err(|(got, expected)| wrong("alone", got, expected))?;
        compared += 1;
    }
    Ok(compared)
}

fn sorted<I: Index>(answer: &I::Answer) -> Vec<(u32, u32)> {
    let mut pairs = vec![];
    I::pairs(answer, &mut pairs);
    pairs.sort_unstable();
    pairs
}

type OverlapDifference = (Option<(u32, u32)>, Option<(u32, u32)>);

/// Returns the first difference between two lists.
fn compare(got: &[(u32, u32)], expected: &[(u32, u32)]) -> Result<(), OverlapDifference> {
    let longest = got.len().max(expected.len());
    let both = (0..longest).map(|at| (got.get(at).copied(), expected.get(at).copied()));
    both.into_iter()
        .find(|(got, expected)| got != expected)
        .map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, RwLock};

    use kv_blocks::SequenceHash;
    use rustc_hash::FxHashSet;

    use crate::{
        oracle,
        workload::{Recipe, Size, TargetChange},
    };

    use super::*;

    /// Credits every target with its blocks and `EXTRA` more.
    struct InflatedIndex<const EXTRA: u32>(RwLock<Vec<FxHashSet<SequenceHash>>>);

    impl<const EXTRA: u32> Index for InflatedIndex<EXTRA> {
        type Prompts<'w> = &'w Workload;
        type Event<'w> = (TargetChange, &'w Workload);
        type Writer = ();
        type Answer = Vec<(u32, u32)>;

        fn empty(targets: usize) -> (Arc<Self>, ()) {
            (
                Arc::new(Self(RwLock::new(vec![FxHashSet::default(); targets]))),
                (),
            )
        }

        fn prompts(workload: &Workload) -> Self::Prompts<'_> {
            workload
        }

        fn read(_: &Self::Prompts<'_>, _: Span) -> u64 {
            0
        }

        fn events<'w>(workload: &'w Workload, changes: &[TargetChange]) -> Vec<Self::Event<'w>> {
            changes.iter().map(|change| (*change, workload)).collect()
        }

        fn apply(&self, _: &mut (), events: &mut Vec<Self::Event<'_>>) {
            let mut held = self.0.write().unwrap();
            for (change, workload) in events {
                match *change {
                    TargetChange::Stored {
                        target,
                        chain,
                        start,
                        end,
                    } => {
                        let chain = workload.rolling(workload.span(chain));
                        held[target as usize].extend(&chain[start as usize..end as usize]);
                    }
                    TargetChange::Removed { target, blocks } => {
                        workload.removed(blocks).iter().for_each(|hash| {
                            held[target as usize].remove(hash);
                        });
                    }
                }
            }
        }

        fn query(&self, workload: &Self::Prompts<'_>, prompt: Span, answer: &mut Self::Answer) {
            answer.clear();
            for (target, held) in (0..).zip(self.0.read().unwrap().iter()) {
                let depth = workload
                    .rolling(prompt)
                    .iter()
                    .take_while(|hash| held.contains(*hash))
                    .count() as u32;
                if depth > 0 {
                    answer.push((target, depth + EXTRA));
                }
            }
        }

        fn pairs(answer: &Self::Answer, pairs: &mut Vec<(u32, u32)>) {
            pairs.extend_from_slice(answer);
        }
    }

    #[test]
    fn an_index_that_credits_a_block_too_many_is_caught() {
        let recipe: Recipe = "synthetic_512".parse().unwrap();
        let workload = recipe.make(None, Size::Quick).unwrap();
        let expected = oracle::answers(&workload, 500);
        assert_eq!(check::<InflatedIndex<0>>(&workload, &expected).unwrap(), 6);
        let mismatch = check::<InflatedIndex<1>>(&workload, &expected).unwrap_err();
        assert_eq!(mismatch.step, expected[0].step);
    }
}
