//! Puts replies that went out into the cache, behind their requests' backs.
//!
//! What is kept is one object: that of a whole reply, or the one that a stream's chunks make. Whoever asks for a reply
//! that is just being stored waits for it ([`Keeper::kept`]), so that a client which asks twice in a row finds its first
//! reply.
//!
//! **Invariant**: no reply waits to be put together, and a request for one no longer than it may for the cache; what does
//! not fit is not kept.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use dialect::{CacheableReply, Dialect, NotCacheable, RequestKey};
use futures_util::{StreamExt, stream};
use net::Clock;
use parking_lot::Mutex;
use response_cache::{CacheEntry, CacheGeneration, CacheKey, ResponseCache};
use supervision::Task;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};

use crate::request::SimilarQuery;

/// Replies that wait to be put together; further ones are not kept.
const WAITING: usize = 1_024;
/// Bytes of all replies that are on their way or wait; what goes beyond is not kept.
const HELD_BYTES: usize = 256 << 20;
/// Replies that are put together at a time.
const AT_A_TIME: usize = 4;
/// A longer one would hold up others on this thread.
const LONG: usize = 16 * 1024;

/// How a reply came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredForm {
    Whole,
    Stream,
}

/// A reply that went out whole and was right.
pub(crate) struct WholeReply {
    pub(crate) dialect: Dialect,
    pub(crate) form: StoredForm,
    pub(crate) body: Vec<u8>,
    pub(crate) budget: FillBudget,
    pub(crate) generation: CacheGeneration,
    /// Where others look for it that mean the same.
    pub(crate) similar_query: Option<SimilarQuery>,
    pub(crate) pending_fill: PendingFill,
}

/// A reply is being stored for as long as this is held.
pub(crate) struct PendingFill {
    key: RequestKey,
    pending_fills: PendingFills,
    /// Dropped with this, which is what others wait for.
    end: watch::Sender<()>,
}

type PendingFills = Arc<Mutex<HashMap<RequestKey, watch::Receiver<()>>>>;

/// The one that keeps replies.
#[derive(Debug)]
pub(crate) struct CacheFiller {
    /// Bounded by the replies that are on their way or wait.
    pending_fills: PendingFills,
    queue: mpsc::Sender<WholeReply>,
    held_bytes: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl CacheFiller {
    /// Call inside a tokio runtime.
    pub(crate) fn start(cache: Arc<ResponseCache>, clock: Clock) -> Arc<Self> {
        let (queue, mut waiting) = mpsc::channel(WAITING);
        let task = tokio::spawn(async move {
            // A panic costs the replies that are just being put together; those that wait outlive it.
            let mut task = Task::new("reply_keeper");
            while task
                .attempt(keep_all(&mut waiting, &cache, clock))
                .await
                .is_none()
            {}
        });
        Arc::new(Self {
            pending_fills: PendingFills::default(),
            queue,
            held_bytes: Arc::default(),
            task,
        })
    }

    /// Says that a reply for this key is about to be stored.
    pub(crate) fn begin_fill(&self, key: RequestKey) -> PendingFill {
        let (end, told) = watch::channel(());
        self.pending_fills.lock().insert(key, told);
        PendingFill {
            key,
            pending_fills: Arc::clone(&self.pending_fills),
            end,
        }
    }

    /// Room for one reply, none of it taken.
    pub(crate) fn fill_budget(&self) -> FillBudget {
        FillBudget {
            bytes: 0,
            of: Arc::clone(&self.held_bytes),
        }
    }

    /// Returns at once.
    pub(crate) fn enqueue(&self, reply: WholeReply) {
        if self.queue.try_send(reply).is_err() {
            tracing::debug!("too much waits to be kept: a reply is not");
        }
    }

    /// Waits for a reply that is just being stored, no longer than `budget`.
    pub(crate) async fn wait_for_fill(&self, key: &RequestKey, budget: Duration) {
        let told = self.pending_fills.lock().get(key).cloned();
        if let Some(mut told) = told {
            let _ = timeout(budget, told.changed()).await;
        }
    }
}

/// What one reply has of the room for all, until it is dropped.
#[derive(Debug)]
pub(crate) struct FillBudget {
    bytes: usize,
    of: Arc<AtomicUsize>,
}

impl FillBudget {
    /// Takes so much more. False: there is no more, and none was taken.
    pub(crate) fn try_grow(&mut self, bytes: usize) -> bool {
        if self.of.fetch_add(bytes, Ordering::Relaxed) + bytes > HELD_BYTES {
            self.of.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.bytes += bytes;
        true
    }
}

impl Drop for FillBudget {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for CacheFiller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drop for PendingFill {
    fn drop(&mut self) {
        let mut marks = self.pending_fills.lock();
        // There may be a later one by now.
        if marks
            .get(&self.key)
            .is_some_and(|told| self.end.subscribe().same_channel(told))
        {
            marks.remove(&self.key);
        }
    }
}

async fn keep_all(waiting: &mut mpsc::Receiver<WholeReply>, cache: &ResponseCache, clock: Clock) {
    let replies = stream::poll_fn(|cx| waiting.poll_recv(cx));
    replies
        .for_each_concurrent(AT_A_TIME, |reply| store(cache, clock, reply))
        .await;
}

async fn store(cache: &ResponseCache, clock: Clock, reply: WholeReply) {
    let WholeReply {
        dialect,
        form,
        body,
        budget: room,
        generation: begun,
        similar_query: sought,
        pending_fill: mark,
    } = reply;
    let key = mark.key;
    let is_long = body.len() > LONG;
    let make = move || made(dialect, form, &body);
    // A panic would cost those that are put together beside it.
    let made = match is_long {
        true => tokio::task::spawn_blocking(make).await.map_err(drop),
        false => std::panic::catch_unwind(AssertUnwindSafe(make)).map_err(drop),
    };
    drop(room);
    match made {
        Ok(Ok(kept)) => {
            let label = EntryKind {
                dialect,
                has_usage: kept.has_usage,
                form,
            }
            .as_u8();
            let stored_at = u64::try_from(clock.unix_s()).unwrap_or_default();
            let entry = CacheEntry {
                label,
                stored_at,
                body: kept.body.into(),
            };
            if let Some(SimilarQuery { rest, direction }) = sought {
                cache.put_similar_reply(rest, direction, entry.clone(), begun);
            }
            cache.put(CacheKey(*key.as_bytes()), entry, begun, mark);
        }
        Ok(Err(why)) => tracing::debug!(%why, "a reply is not kept"),
        Err(()) => tracing::error!("putting a reply together failed: it is not kept"),
    }
}

fn made(dialect: Dialect, form: StoredForm, body: &[u8]) -> Result<CacheableReply, NotCacheable> {
    match form {
        StoredForm::Stream => dialect::StreamObject::read(dialect, &[body]),
        StoredForm::Whole => dialect::keep_whole(dialect, body),
    }
}

/// What an entry is, in one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryKind {
    dialect: Dialect,
    has_usage: bool,
    form: StoredForm,
}

const USAGE: u8 = 0x80;
const STREAMED: u8 = 0x40;

impl EntryKind {
    fn as_u8(self) -> u8 {
        let usage = if self.has_usage { USAGE } else { 0 };
        let streamed = if self.form == StoredForm::Stream {
            STREAMED
        } else {
            0
        };
        number(self.dialect) | usage | streamed
    }

    /// `None`: it is not of this dialect.
    pub(crate) fn read(label: u8, dialect: Dialect) -> Option<Self> {
        let form = if label & STREAMED == 0 {
            StoredForm::Whole
        } else {
            StoredForm::Stream
        };
        let own = label & !(USAGE | STREAMED) == number(dialect);
        own.then_some(Self {
            dialect,
            has_usage: label & USAGE != 0,
            form,
        })
    }

    /// A stream that was not asked for its usage has none; a whole reply has what its engine says.
    pub(crate) fn is_complete_reply(self) -> bool {
        self.has_usage || self.form == StoredForm::Whole
    }
}

fn number(dialect: Dialect) -> u8 {
    match dialect {
        Dialect::Chat => 1,
        Dialect::Completions => 2,
        Dialect::Messages => 3,
        Dialect::Responses | Dialect::Embeddings | Dialect::Rerank | Dialect::Score => 0,
    }
}
