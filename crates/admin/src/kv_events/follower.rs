//! One subscriber of the event stream.

use std::{sync::Arc, time::Duration};

use api::KvStreamNotice;
use axum::body::Bytes;
use dialect::{ApiError, ErrorCode};
use kv_index::{ChangeFeed, KvIndex};
use net::Clock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    names::SubscriberNames,
    query::{Format, StreamQuery},
    snapshot::{SnapshotCursor, SnapshotPiece},
    writer::{CHUNK, EnvelopeWriter},
};

/// Poll interval of a quiet index: a change is sent this much later at most.
const POLL: Duration = Duration::from_millis(20);
/// Silence after which a comment is sent, so that no proxy on the way considers the connection
/// dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A permit of one subscriber.
#[derive(Debug)]
pub(super) struct SubscriberPermit {
    _subscriber: OwnedSemaphorePermit,
    snapshots: Arc<Semaphore>,
}

impl SubscriberPermit {
    pub(super) fn new(permit: OwnedSemaphorePermit, snapshots: Arc<Semaphore>) -> Self {
        Self {
            _subscriber: permit,
            snapshots,
        }
    }
}

/// One subscriber. Dropping it frees its permit.
#[derive(Debug)]
pub(super) struct Follower {
    index: Arc<KvIndex>,
    format: Format,
    permit: SubscriberPermit,
    /// State with one user at a time; absent while a piece of the initial state is being read.
    work: Option<Box<SubscriptionWork>>,
    silent_for: Duration,
}

#[derive(Debug)]
struct SubscriptionWork {
    stage: SubscriptionStage,
    writer: EnvelopeWriter,
}

#[derive(Debug)]
enum SubscriptionStage {
    /// The initial state is requested, but all snapshot permits are taken.
    Waiting,
    Snapshot {
        snapshot: Box<SnapshotCursor>,
        changes: ChangeFeed,
        _snapshot_permit: OwnedSemaphorePermit,
    },
    Following(ChangeFeed),
    Over,
}

impl Follower {
    /// Follows the index from now on.
    pub(super) fn new(
        index: &Arc<KvIndex>,
        clock: Clock,
        names: SubscriberNames,
        query: &StreamQuery,
        permit: SubscriberPermit,
    ) -> Result<Self, ApiError> {
        let index = Arc::clone(index);
        let changes = index.subscribe().ok_or_else(given_up)?;
        let stage = if query.snapshot {
            SubscriptionStage::Waiting
        } else {
            SubscriptionStage::Following(changes)
        };
        let writer = EnvelopeWriter::new(Arc::clone(&index), names, clock, query);
        let work = Some(Box::new(SubscriptionWork { stage, writer }));
        Ok(Self {
            index,
            format: query.format,
            permit,
            work,
            silent_for: Duration::ZERO,
        })
    }

    /// Returns the next chunk; `None` after the last. Waits until there is one.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.begin_snapshot();
            let chunk = if self.is_in_snapshot() {
                self.snapshot_chunk().await?
            } else {
                self.work.as_mut()?.follow()
            };
            if !chunk.is_empty() {
                self.silent_for = Duration::ZERO;
                return Some(chunk.into());
            }
            if self.is_in_snapshot() {
                continue;
            }
            if matches!(self.work.as_ref()?.stage, SubscriptionStage::Over) {
                return None;
            }
            tokio::time::sleep(POLL).await;
            self.silent_for += POLL;
            if self.silent_for >= KEEP_ALIVE {
                self.silent_for = Duration::ZERO;
                return Some(Bytes::from_static(b": keep-alive\n\n"));
            }
        }
    }

    fn is_in_snapshot(&self) -> bool {
        self.work
            .as_ref()
            .is_some_and(|work| matches!(work.stage, SubscriptionStage::Snapshot { .. }))
    }

    /// Begins the initial state, if it is requested and a snapshot permit is free.
    fn begin_snapshot(&mut self) {
        let Some(work) = self
            .work
            .as_mut()
            .filter(|work| matches!(work.stage, SubscriptionStage::Waiting))
        else {
            return;
        };
        let Ok(snapshot_permit) = Arc::clone(&self.permit.snapshots).try_acquire_owned() else {
            return;
        };
        work.stage = match self.index.subscribe() {
            Some(changes) => SubscriptionStage::Snapshot {
                snapshot: Box::new(SnapshotCursor::new(self.format)),
                changes,
                _snapshot_permit: snapshot_permit,
            },
            None => SubscriptionStage::Over,
        };
    }

    /// Returns the next chunk of the initial state, made on a blocking thread. `None` if that
    /// failed.
    async fn snapshot_chunk(&mut self) -> Option<Vec<u8>> {
        let mut work = self.work.take()?;
        let index = Arc::clone(&self.index);
        let made = runtime::spawn_blocking(move || {
            let chunk = work.snapshot_chunk(&index);
            (work, chunk)
        });
        let (work, chunk) = made.await.ok()?;
        self.work = Some(work);
        Some(chunk)
    }
}

impl SubscriptionWork {
    fn snapshot_chunk(&mut self, index: &KvIndex) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < CHUNK {
            self.writer.write(&mut out);
            if !self.writer.is_empty() {
                continue;
            }
            let SubscriptionStage::Snapshot {
                snapshot, changes, ..
            } = &mut self.stage
            else {
                break;
            };
            self.writer.names().refresh();
            match snapshot.next(index, self.writer.names(), changes) {
                SnapshotPiece::Some(announced) => self.writer.add(announced),
                SnapshotPiece::Last(announced) => {
                    let blocks = snapshot.blocks;
                    notify(
                        &KvStreamNotice::SnapshotEnd { blocks },
                        "snapshot_end",
                        &mut out,
                    );
                    self.writer.add(announced);
                    if let SubscriptionStage::Snapshot { changes, .. } =
                        std::mem::replace(&mut self.stage, SubscriptionStage::Over)
                    {
                        self.stage = SubscriptionStage::Following(changes);
                    }
                    break;
                }
                SnapshotPiece::Lost => self.end_lagged(None, &mut out),
            }
        }
        out
    }

    fn follow(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < CHUNK {
            self.writer.write(&mut out);
            if !self.writer.is_empty() {
                continue;
            }
            let SubscriptionStage::Following(changes) = &mut self.stage else {
                break;
            };
            match changes.take(1) {
                Ok(taken) if taken.is_empty() => break,
                Ok(taken) => self.writer.add(taken),
                Err(lagged) => self.end_lagged(Some(lagged.lost), &mut out),
            }
        }
        out
    }

    fn end_lagged(&mut self, lost: Option<u64>, out: &mut Vec<u8>) {
        let message = "changes were made faster than they were read: connect again with snapshot=true, and forget what came before";
        let message = message.into();
        notify(&KvStreamNotice::Lagged { lost, message }, "lagged", out);
        self.stage = SubscriptionStage::Over;
    }
}

fn notify(notice: &KvStreamNotice, name: &str, out: &mut Vec<u8>) {
    // Texts and numbers are always JSON.
    let data = serde_json::to_string(notice).unwrap_or_default();
    out.extend_from_slice(format!("event: {name}\ndata: {data}\n\n").as_bytes());
}

fn given_up() -> ApiError {
    ApiError::new(
        ErrorCode::Internal,
        "the index was given up after a fault in it, which was logged: start the router again",
    )
}
