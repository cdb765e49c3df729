//! Crate `kv-index` of the SMG gateway: `ChainIndex`, with one lane map per worker.

use std::sync::Arc;

use smg_kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};

use crate::workload::{Span, TargetChange, Workload};

use super::Index;

/// The index, called by `score_into`, which reports each worker to a closure and allocates nothing.
pub(crate) struct SmgChain(ChainIndex);

/// One event with its blocks in the crate's form.
pub(crate) enum Event {
    Stored {
        worker: u32,
        parent: Option<SequenceHash>,
        blocks: Vec<StoredBlock>,
    },
    Removed {
        worker: u32,
        blocks: Vec<SequenceHash>,
    },
}

impl Index for SmgChain {
    type Prompts<'w> = &'w Workload;
    type Event<'w> = Event;
    type Writer = Vec<ChainBlockMap>;
    type Answer = Vec<(u32, u32)>;

    fn empty(targets: usize) -> (Arc<Self>, Self::Writer) {
        // Worker ids are assigned in multiples of 64.
        let index = ChainIndex::with_max_workers(targets.max(64));
        for target in 0..targets {
            let id = index
                .intern_worker(&format!("w{target}"))
                .expect("there is room for every worker");
            assert_eq!(id as usize, target, "ids are given out in order");
        }
        (
            Arc::new(Self(index)),
            (0..targets).map(|_| ChainBlockMap::new()).collect(),
        )
    }

    fn prompts(workload: &Workload) -> Self::Prompts<'_> {
        workload
    }

    fn read(workload: &Self::Prompts<'_>, prompt: Span) -> u64 {
        workload
            .content(prompt)
            .iter()
            .fold(0, |all, hash| all ^ hash)
    }

    fn events(workload: &Workload, changes: &[TargetChange]) -> Vec<Event> {
        let event = |change: &TargetChange| match *change {
            TargetChange::Stored {
                target,
                chain,
                start,
                end,
            } => {
                let (span, range) = (workload.span(chain), start as usize..end as usize);
                let rolling = workload.rolling(span);
                let content = &workload.content(span)[range.clone()];
                let block = |(content, rolling): (&u64, &kv_blocks::SequenceHash)| StoredBlock {
                    seq_hash: SequenceHash(rolling.0),
                    content_hash: ContentHash(*content),
                };
                Event::Stored {
                    worker: target,
                    parent: range
                        .start
                        .checked_sub(1)
                        .map(|before| SequenceHash(rolling[before].0)),
                    blocks: content.iter().zip(&rolling[range]).map(block).collect(),
                }
            }
            TargetChange::Removed { target, blocks } => Event::Removed {
                worker: target,
                blocks: workload
                    .removed(blocks)
                    .iter()
                    .map(|hash| SequenceHash(hash.0))
                    .collect(),
            },
        };
        changes.iter().map(event).collect()
    }

    fn apply(&self, maps: &mut Self::Writer, events: &mut Vec<Event>) {
        for event in events {
            match event {
                Event::Stored {
                    worker,
                    parent,
                    blocks,
                } => {
                    let map = &mut maps[*worker as usize];
                    self.0
                        .apply_stored(*worker, blocks, *parent, map)
                        .expect("parents are stored before children");
                }
                Event::Removed { worker, blocks } => {
                    self.0
                        .apply_removed(*worker, blocks, &mut maps[*worker as usize]);
                }
            }
        }
    }

    fn query(&self, workload: &Self::Prompts<'_>, prompt: Span, answer: &mut Self::Answer) {
        answer.clear();
        self.0.score_into(
            workload.content(prompt),
            |hash| *hash,
            false,
            |worker, depth| answer.push((worker, depth)),
        );
    }

    fn pairs(answer: &Self::Answer, pairs: &mut Vec<(u32, u32)>) {
        pairs.extend_from_slice(answer);
    }
}
