//! Crate `dynamo-kv-router`: its concurrent indexers with their own event lane, a thread fed by the
//! crate's task channel, as in production.

use std::{marker::PhantomData, sync::Arc};

use dynamo_kv_router::{
    ConcurrentRadixTreeCompressed, PositionalIndexer,
    indexer::{SyncIndexer, WorkerTask, positional::SearchMode},
    protocols::{
        ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
        KvCacheStoreData, KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
    },
};
use kv_blocks::SequenceHash;

use crate::workload::{Span, TargetChange, Workload};

use super::Index;

/// One of the crate's indexers.
pub(crate) trait IndexerVariant: Send + Sync + 'static {
    type Indexer: SyncIndexer;

    fn indexer() -> Self::Indexer;
}

/// The compressed radix tree.
pub(crate) struct Compressed;

impl IndexerVariant for Compressed {
    type Indexer = ConcurrentRadixTreeCompressed;

    fn indexer() -> Self::Indexer {
        ConcurrentRadixTreeCompressed::new()
    }
}

/// Number of positions that the positional indexer skips in its search; the crate's default.
const STRIDE: usize = 32;

/// The positional indexer with its binary search.
pub(crate) struct Binary;

impl IndexerVariant for Binary {
    type Indexer = PositionalIndexer;

    fn indexer() -> Self::Indexer {
        PositionalIndexer::new_with_mode(STRIDE, SearchMode::Binary)
    }
}

/// The positional indexer with its strided search.
pub(crate) struct Strided;

impl IndexerVariant for Strided {
    type Indexer = PositionalIndexer;

    fn indexer() -> Self::Indexer {
        PositionalIndexer::new_with_mode(STRIDE, SearchMode::Strided)
    }
}

/// An indexer and the thread that applies its events.
pub(crate) struct IndexerThread<K: IndexerVariant> {
    indexer: Arc<K::Indexer>,
    kind: PhantomData<K>,
}

/// The sender of the lane; the thread ends when it is dropped.
pub(crate) struct IndexerHandle(flume::Sender<WorkerTask>);

impl IndexerHandle {
    fn send(&self, task: WorkerTask) {
        self.0
            .send(task)
            .expect("the lane's thread runs until it is told to end");
    }
}

impl Drop for IndexerHandle {
    fn drop(&mut self) {
        // A lane that has already ended needs no message.
        let _ = self.0.send(WorkerTask::Terminate);
    }
}

impl<K: IndexerVariant> Index for IndexerThread<K> {
    type Prompts<'w> = Vec<LocalBlockHash>;
    type Event<'w> = RouterEvent;
    type Writer = IndexerHandle;
    type Answer = OverlapScores;

    fn empty(_targets: usize) -> (Arc<Self>, IndexerHandle) {
        let indexer = Arc::new(K::indexer());
        // The crate's own lane has no bound either; the workload bounds its queue.
        let (feed, tasks) = flume::unbounded();
        let lane = indexer.clone();
        std::thread::spawn(move || lane.worker(tasks, None));
        (
            Arc::new(Self {
                indexer,
                kind: PhantomData,
            }),
            IndexerHandle(feed),
        )
    }

    fn prompts(workload: &Workload) -> Vec<LocalBlockHash> {
        workload
            .all_content()
            .iter()
            .map(|hash| LocalBlockHash(*hash))
            .collect()
    }

    fn read(prompts: &Vec<LocalBlockHash>, prompt: Span) -> u64 {
        prompts[prompt.start..prompt.start + prompt.len]
            .iter()
            .fold(0, |all, hash| all ^ hash.0)
    }

    fn events(workload: &Workload, changes: &[TargetChange]) -> Vec<RouterEvent> {
        changes
            .iter()
            .map(|change| event(workload, change))
            .collect()
    }

    fn apply(&self, feed: &mut IndexerHandle, events: &mut Vec<RouterEvent>) {
        for event in events.drain(..) {
            feed.send(WorkerTask::Event(event));
        }
    }

    fn settle(&self, feed: &mut IndexerHandle) {
        let (done, wait) = tokio::sync::oneshot::channel();
        feed.send(WorkerTask::Flush(done));
        wait.blocking_recv().expect("the lane answers a flush");
    }

    fn query(&self, prompts: &Vec<LocalBlockHash>, prompt: Span, answer: &mut OverlapScores) {
        *answer = self
            .indexer
            .find_matches(&prompts[prompt.start..prompt.start + prompt.len], false);
    }

    fn pairs(answer: &OverlapScores, pairs: &mut Vec<(u32, u32)>) {
        pairs.extend(
            answer
                .scores
                .iter()
                .map(|(worker, depth)| (worker.worker_id as u32, *depth)),
        );
    }
}

fn event(workload: &Workload, change: &TargetChange) -> RouterEvent {
    let external = |hash: &SequenceHash| ExternalSequenceBlockHash(hash.0);
    let (target, data) = match *change {
        TargetChange::Stored {
            target,
            chain,
            start,
            end,
        } => {
            let (span, range) = (workload.span(chain), start as usize..end as usize);
            let rolling = workload.rolling(span);
            let content = &workload.content(span)[range.clone()];
            let block = |(content, rolling): (&u64, &SequenceHash)| KvCacheStoredBlockData {
                block_hash: external(rolling),
                tokens_hash: LocalBlockHash(*content),
                mm_extra_info: None,
            };
            let parent_hash = range
                .start
                .checked_sub(1)
                .map(|before| external(&rolling[before]));
            let blocks = content.iter().zip(&rolling[range]).map(block).collect();
            (
                target,
                KvCacheEventData::Stored(KvCacheStoreData {
                    parent_hash,
                    start_position: None,
                    blocks,
                }),
            )
        }
        TargetChange::Removed { target, blocks } => {
            let block_hashes = workload.removed(blocks).iter().map(external).collect();
            (
                target,
                KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }),
            )
        }
    };
    RouterEvent::new(
        u64::from(target),
        KvCacheEvent {
            event_id: 0,
            data,
            dp_rank: 0,
        },
    )
}
