//! This repository's `KvIndex`, fed with events that name blocks by their sequence hashes.

use std::sync::Arc;

use kv_blocks::{
    BlockSize, DpRank, Identity, Moment, Namespace, SequenceHash, Target, Tier, WorkerId,
};
use kv_index::{IndexSettings, KvIndex, Matches, SpaceKey};

use crate::workload::{Span, TargetChange, Workload};

use super::{BATCH, Index};

/// A budget for every workload: no block is shed.
const MEMORY_BUDGET: u64 = 4 << 30;
/// The model that all targets serve.
const MODEL: &str = "model";

/// The index with its single namespace.
pub(crate) struct WarmrouteIndex {
    index: KvIndex,
    namespace: Namespace,
    space: SpaceKey,
}

/// One event; its hashes are a span of the workload.
pub(crate) enum Event<'w> {
    Stored {
        target: Target,
        parent: Option<SequenceHash>,
        hashes: &'w [SequenceHash],
    },
    Removed {
        target: Target,
        hashes: &'w [SequenceHash],
    },
}

impl Index for WarmrouteIndex {
    type Prompts<'w> = &'w Workload;
    type Event<'w> = Event<'w>;
    type Writer = ();
    type Answer = Matches;

    fn empty(targets: usize) -> (Arc<Self>, ()) {
        let index = KvIndex::new(IndexSettings {
            memory_budget: MEMORY_BUDGET,
            ..IndexSettings::default()
        });
        let model: Arc<str> = MODEL.into();
        for number in 0..targets as u32 {
            index.register(target(number), model.clone());
            let slot = index
                .slot(target(number))
                .expect("a registered target has a slot");
            assert_eq!(slot.0, number, "slots are given out in order");
        }
        let block_size = BlockSize::new(16).expect("16 is a block size");
        let namespace = Namespace {
            model,
            lora: None,
            salt: None,
            block_size,
            identity: Identity::Tokens,
        };
        let space = index.space(&namespace);
        (
            Arc::new(Self {
                index,
                namespace,
                space,
            }),
            (),
        )
    }

    fn prompts(workload: &Workload) -> Self::Prompts<'_> {
        workload
    }

    fn read(workload: &Self::Prompts<'_>, prompt: Span) -> u64 {
        workload
            .rolling(prompt)
            .iter()
            .fold(0, |all, hash| all ^ hash.0)
    }

    fn events<'w>(workload: &'w Workload, changes: &[TargetChange]) -> Vec<Event<'w>> {
        let event = |change: &TargetChange| match *change {
            TargetChange::Stored {
                target: number,
                chain,
                start,
                end,
            } => {
                let chain = workload.rolling(workload.span(chain));
                let (start, end) = (start as usize, end as usize);
                let parent = start.checked_sub(1).map(|before| chain[before]);
                Event::Stored {
                    target: target(number),
                    parent,
                    hashes: &chain[start..end],
                }
            }
            TargetChange::Removed {
                target: number,
                blocks,
            } => Event::Removed {
                target: target(number),
                hashes: workload.removed(blocks),
            },
        };
        changes.iter().map(event).collect()
    }

    fn apply(&self, (): &mut (), events: &mut Vec<Event<'_>>) {
        for event in events {
            match *event {
                Event::Stored {
                    target,
                    parent,
                    hashes,
                } => {
                    self.index
                        .store_hashes(target, &self.namespace, parent, hashes, Tier::Device);
                }
                Event::Removed { target, hashes } => {
                    self.index
                        .remove_hashes(target, &self.namespace, hashes, Tier::Device);
                }
            }
        }
    }

    fn query(&self, workload: &Self::Prompts<'_>, prompt: Span, answer: &mut Matches) {
        self.index
            .lookup_into(self.space, workload.rolling(prompt), Moment::START, answer);
    }

    fn query_batch(&self, workload: &Self::Prompts<'_>, batch: &[Span], answers: &mut [Matches]) {
        let mut chains: [&[SequenceHash]; BATCH] = [&[]; BATCH];
        for (chain, prompt) in chains.iter_mut().zip(batch) {
            *chain = workload.rolling(*prompt);
        }
        self.index
            .lookup_batch(self.space, &chains[..batch.len()], Moment::START, answers);
    }

    fn pairs(answer: &Matches, pairs: &mut Vec<(u32, u32)>) {
        answer.each(|slot, depth| pairs.push((slot.0, depth)));
    }
}

fn target(number: u32) -> Target {
    Target {
        worker: WorkerId(number),
        rank: DpRank(0),
    }
}
