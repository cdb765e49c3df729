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

use dialect::{Dialect, KeptReply, NotKept, RequestKey};
use futures_util::{StreamExt, stream};
use net::Clock;
use parking_lot::Mutex;
use response_cache::{CacheKey, Entry, Generation, ResponseCache};
use supervision::Task;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};

use crate::request::Sought;

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
pub(crate) enum Form {
    Whole,
    Stream,
}

/// A reply that went out whole and was right.
pub(crate) struct WholeReply {
    pub(crate) dialect: Dialect,
    pub(crate) form: Form,
    pub(crate) body: Vec<u8>,
    pub(crate) room: Room,
    pub(crate) begun: Generation,
    /// Where others look for it that mean the same.
    pub(crate) sought: Option<Sought>,
    pub(crate) mark: Mark,
}

/// A reply is being stored for as long as this is held.
pub(crate) struct Mark {
    key: RequestKey,
    marks: Marks,
    /// Dropped with this, which is what others wait for.
    end: watch::Sender<()>,
}

type Marks = Arc<Mutex<HashMap<RequestKey, watch::Receiver<()>>>>;

/// The one that keeps replies.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// Bounded by the replies that are on their way or wait.
    marks: Marks,
    queue: mpsc::Sender<WholeReply>,
    held_bytes: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Keeper {
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
            marks: Marks::default(),
            queue,
            held_bytes: Arc::default(),
            task,
        })
    }

    /// Says that a reply for this key is about to be stored.
    pub(crate) fn mark(&self, key: RequestKey) -> Mark {
        let (end, told) = watch::channel(());
        self.marks.lock().insert(key, told);
        Mark {
            key,
            marks: Arc::clone(&self.marks),
            end,
        }
    }

    /// Room for one reply, none of it taken.
    pub(crate) fn room(&self) -> Room {
        Room {
            bytes: 0,
            of: Arc::clone(&self.held_bytes),
        }
    }

    /// Returns at once.
    pub(crate) fn keep(&self, reply: WholeReply) {
        if self.queue.try_send(reply).is_err() {
            tracing::debug!("too much waits to be kept: a reply is not");
        }
    }

    /// Waits for a reply that is just being stored, no longer than `budget`.
    pub(crate) async fn kept(&self, key: &RequestKey, budget: Duration) {
        let told = self.marks.lock().get(key).cloned();
        if let Some(mut told) = told {
            let _ = timeout(budget, told.changed()).await;
        }
    }
}

/// What one reply has of the room for all, until it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    bytes: usize,
    of: Arc<AtomicUsize>,
}

impl Room {
    /// Takes so much more. False: there is no more, and none was taken.
    pub(crate) fn takes(&mut self, bytes: usize) -> bool {
        if self.of.fetch_add(bytes, Ordering::Relaxed) + bytes > HELD_BYTES {
            self.of.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.bytes += bytes;
        true
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut marks = self.marks.lock();
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
        room,
        begun,
        sought,
        mark,
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
            let label = Label {
                dialect,
                has_usage: kept.has_usage,
                form,
            }
            .as_u8();
            let stored_at = u64::try_from(clock.unix_s()).unwrap_or_default();
            let entry = Entry {
                label,
                stored_at,
                body: kept.body.into(),
            };
            if let Some(Sought { rest, direction }) = sought {
                cache.put_similar(rest, direction, entry.clone(), begun);
            }
            cache.put(CacheKey(*key.as_bytes()), entry, begun, mark);
        }
        Ok(Err(why)) => tracing::debug!(%why, "a reply is not kept"),
        Err(()) => tracing::error!("putting a reply together failed: it is not kept"),
    }
}

fn made(dialect: Dialect, form: Form, body: &[u8]) -> Result<KeptReply, NotKept> {
    match form {
        Form::Stream => dialect::StreamObject::read(dialect, &[body]),
        Form::Whole => dialect::keep_whole(dialect, body),
    }
}

/// What an entry is, in one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    dialect: Dialect,
    has_usage: bool,
    form: Form,
}

const USAGE: u8 = 0x80;
const STREAMED: u8 = 0x40;

impl Label {
    fn as_u8(self) -> u8 {
        let usage = if self.has_usage { USAGE } else { 0 };
        let streamed = if self.form == Form::Stream {
            STREAMED
        } else {
            0
        };
        number(self.dialect) | usage | streamed
    }

    /// `None`: it is not of this dialect.
    pub(crate) fn read(label: u8, dialect: Dialect) -> Option<Self> {
        let form = if label & STREAMED == 0 {
            Form::Whole
        } else {
            Form::Stream
        };
        let own = label & !(USAGE | STREAMED) == number(dialect);
        own.then_some(Self {
            dialect,
            has_usage: label & USAGE != 0,
            form,
        })
    }

    /// A stream that was not asked for its usage has none; a whole reply has what its engine says.
    pub(crate) fn has_what_whole_replies_have(self) -> bool {
        self.has_usage || self.form == Form::Whole
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
