//! The plain reference answer for every index.

use kv_blocks::SequenceHash;
use rustc_hash::FxHashSet;

use crate::workload::{TargetChange, Workload, WorkloadStep};

/// The right answer to one query.
#[derive(Debug)]
pub(crate) struct ExpectedOverlaps {
    /// The query's position in the workload's steps.
    pub(crate) step: usize,
    /// Every target that holds the first block, with the leading blocks it holds, in the order of
    /// targets.
    pub(crate) pairs: Vec<(u32, u32)>,
}

/// Returns the right answers to every `every`th query of the workload, starting with the first.
///
/// It has one set of blocks per target, and walks each prompt block by block: too simple to be
/// wrong, and exact with holes too.
pub(crate) fn answers(workload: &Workload, every: usize) -> Vec<ExpectedOverlaps> {
    let mut held: Vec<FxHashSet<SequenceHash>> = vec![FxHashSet::default(); workload.targets];
    let mut expected = vec![];
    let mut queries = 0;
    for (step, what) in workload.steps.iter().enumerate() {
        match *what {
            WorkloadStep::Change(TargetChange::Stored {
                target,
                chain,
                start,
                end,
            }) => {
                let chain = workload.rolling(workload.span(chain));
                held[target as usize].extend(&chain[start as usize..end as usize]);
            }
            WorkloadStep::Change(TargetChange::Removed { target, blocks }) => {
                for hash in workload.removed(blocks) {
                    held[target as usize].remove(hash);
                }
            }
            WorkloadStep::Query(chain) => {
                if queries % every == 0 {
                    let chain = workload.rolling(workload.span(chain));
                    let depth = |held: &FxHashSet<_>| {
                        chain.iter().take_while(|hash| held.contains(*hash)).count()
                    };
                    let all = held
                        .iter()
                        .enumerate()
                        .map(|(target, held)| (target as u32, depth(held) as u32));
                    expected.push(ExpectedOverlaps {
                        step,
                        pairs: all.filter(|(_, depth)| *depth > 0).collect(),
                    });
                }
                queries += 1;
            }
        }
    }
    expected
}
