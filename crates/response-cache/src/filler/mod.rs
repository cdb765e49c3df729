//! Stores finished replies in the response cache, in the background.
//!
//! An entry is one object: that of a whole reply, or the one that a stream's chunks add up to. A
//! lookup waits for a reply that is just being stored ([`CacheFiller::wait_for_fill`]), so that a
//! client that repeats a request at once finds its first reply.
//!
//! **Invariant**: no reply waits for its assembly, and a lookup waits no longer than the cache's
//! budget; a reply that does not fit is not stored.

mod entry_kind;
mod reply_fill;

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use dialect::{CacheableReply, Dialect, NotCacheable, RequestKey};
use futures_util::{StreamExt, stream};
use net::Clock;
use parking_lot::Mutex;
use resilience::{ByteBudget, BytePermit};
use supervision::Task;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};

use self::entry_kind::StoredForm;
pub use self::{
    entry_kind::EntryKind,
    reply_fill::{FillingBody, ReplyFill},
};
use crate::{CacheEntry, CacheGeneration, CacheKey, CacheScope, ResponseCache, UnitVector};

/// Replies that wait for assembly; further ones are not stored.
const WAITING: usize = 1_024;
/// Most bytes of all replies that are being relayed or wait; beyond that none is stored.
const BUFFERED_BYTES: usize = 256 << 20;
/// Replies that are assembled at a time.
const AT_A_TIME: usize = 4;
/// A longer body is parsed off the runtime thread.
const LONG: usize = 16 * 1024;

/// A question under which the reply is stored for similarity lookups.
#[derive(Debug)]
pub struct SimilarQuery {
    /// Key of all else that the reply depends on.
    pub rest: CacheKey,
    /// Embedding of the question.
    pub direction: UnitVector,
}

/// A reply that the client got whole and without error.
#[derive(Debug)]
struct WholeReply {
    dialect: Dialect,
    scope: CacheScope,
    /// The form in which it arrived.
    form: StoredForm,
    body: Vec<u8>,
    /// The share of the byte budget that these bytes take.
    budget: BytePermit,
    /// The cache's generation when the request began.
    generation: CacheGeneration,
    /// The index entry for similarity lookups.
    similar_query: Option<SimilarQuery>,
    /// The mark under which lookups wait for it.
    pending_fill: PendingFill,
}

/// Marks a reply as being stored until dropped.
#[derive(Debug)]
struct PendingFill {
    key: RequestKey,
    pending_fills: PendingFills,
    /// Dropped with this value, which wakes waiting lookups.
    end: watch::Sender<()>,
}

type PendingFills = Arc<Mutex<HashMap<RequestKey, watch::Receiver<()>>>>;

/// Stores replies in the response cache.
#[derive(Debug)]
pub struct CacheFiller {
    /// Bounded by the replies that are being relayed or wait.
    pending_fills: PendingFills,
    queue: mpsc::Sender<WholeReply>,
    buffered_bytes: ByteBudget,
    task: JoinHandle<()>,
}

impl CacheFiller {
    /// Starts the task that stores replies in `cache`. Call inside a tokio runtime.
    pub fn start(cache: Arc<ResponseCache>, clock: Clock) -> Arc<Self> {
        let (queue, mut waiting) = mpsc::channel(WAITING);
        let task = runtime::spawn(async move {
            // A panic costs the replies that are just being assembled; waiting ones survive.
            let mut task = Task::new("reply_keeper");
            while task
                .attempt(store_all(&mut waiting, &cache, clock))
                .await
                .is_none()
            {}
        });
        Arc::new(Self {
            pending_fills: PendingFills::default(),
            queue,
            buffered_bytes: ByteBudget::new(BUFFERED_BYTES),
            task,
        })
    }

    /// Marks a reply for this key as being stored.
    fn begin_fill(&self, key: RequestKey) -> PendingFill {
        let (end, ended) = watch::channel(());
        self.pending_fills.lock().insert(key, ended);
        PendingFill {
            key,
            pending_fills: Arc::clone(&self.pending_fills),
            end,
        }
    }

    /// Returns an empty permit for the bytes of one reply.
    fn fill_permit(&self) -> BytePermit {
        self.buffered_bytes.empty_permit()
    }

    /// Queues a reply. Returns at once.
    fn enqueue(&self, reply: WholeReply) {
        if self.queue.try_send(reply).is_err() {
            tracing::debug!("too much waits to be kept: a reply is not");
        }
    }

    /// Waits at most `budget` for a reply that is just being stored.
    pub async fn wait_for_fill(&self, key: &RequestKey, budget: Duration) {
        let ended = self.pending_fills.lock().get(key).cloned();
        if let Some(mut ended) = ended {
            let _ = timeout(budget, ended.changed()).await;
        }
    }
}

impl Drop for CacheFiller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drop for PendingFill {
    fn drop(&mut self) {
        let mut pending = self.pending_fills.lock();
        // A later fill may have replaced it.
        if pending
            .get(&self.key)
            .is_some_and(|ended| self.end.subscribe().same_channel(ended))
        {
            pending.remove(&self.key);
        }
    }
}

async fn store_all(waiting: &mut mpsc::Receiver<WholeReply>, cache: &ResponseCache, clock: Clock) {
    let replies = stream::poll_fn(|cx| waiting.poll_recv(cx));
    replies
        .for_each_concurrent(AT_A_TIME, |reply| store(cache, clock, reply))
        .await;
}

async fn store(cache: &ResponseCache, clock: Clock, reply: WholeReply) {
    let WholeReply {
        dialect,
        scope,
        form,
        body,
        budget: permit,
        generation,
        similar_query,
        pending_fill,
    } = reply;
    let key = pending_fill.key;
    let is_long = body.len() > LONG;
    let make = move || made(dialect, form, &body);
    // A panic would cost the replies that are assembled at the same time.
    let made = match is_long {
        true => runtime::spawn_blocking(make).await.map_err(drop),
        false => std::panic::catch_unwind(AssertUnwindSafe(make)).map_err(drop),
    };
    drop(permit);
    match made {
        Ok(Ok(assembled)) => {
            let label = EntryKind::new(dialect, assembled.has_usage, form).as_u8();
            let stored_at = u64::try_from(clock.unix_s()).unwrap_or_default();
            let entry = CacheEntry {
                label,
                stored_at,
                body: assembled.body.into(),
            };
            if let Some(SimilarQuery { rest, direction }) = similar_query {
                cache.put_similar_reply(rest, direction, entry.clone(), generation);
            }
            let key = CacheKey::new(scope, *key.as_bytes());
            cache.put(key, entry, generation, pending_fill);
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

#[cfg(test)]
mod tests {
    use config::ResponseCacheSection;
    use dialect::RepeatabilityView;
    use futures_util::FutureExt as _;
    use prometheus_client::registry::Registry;

    use super::*;

    fn filler() -> Arc<CacheFiller> {
        let (clock, mut registry) = (Clock::system(), Registry::default());
        let settings = ResponseCacheSection::default();
        let cache = ResponseCache::start(&settings, None, clock, &mut registry);
        CacheFiller::start(cache.expect("a cache in memory"), clock)
    }

    fn key(body: &str) -> RequestKey {
        let view = RepeatabilityView::read(body.as_bytes()).expect("an object");
        view.key("default", "/v1/chat/completions", &[])
    }

    #[tokio::test]
    async fn a_lookup_waits_for_a_reply_that_is_being_stored_and_for_no_other() {
        let filler = filler();
        let (one, other) = (key(r#"{"model":"m"}"#), key(r#"{"model":"n"}"#));
        let long = Duration::from_secs(3600);
        assert!(filler.wait_for_fill(&one, long).now_or_never().is_some());
        let fill = filler.begin_fill(one);
        assert!(filler.wait_for_fill(&other, long).now_or_never().is_some());
        let mut waiting = Box::pin(filler.wait_for_fill(&one, long));
        assert!((&mut waiting).now_or_never().is_none());
        drop(fill);
        waiting.await;
        assert!(filler.pending_fills.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_waits_no_longer_than_its_budget() {
        let filler = filler();
        let _fill = filler.begin_fill(key("{}"));
        let began = tokio::time::Instant::now();
        filler
            .wait_for_fill(&key("{}"), Duration::from_millis(50))
            .await;
        assert_eq!(began.elapsed().as_millis(), 50);
    }

    #[tokio::test]
    async fn the_end_of_a_fill_does_not_end_a_later_one_of_the_same_key() {
        let filler = filler();
        let first = filler.begin_fill(key("{}"));
        let second = filler.begin_fill(key("{}"));
        drop(first);
        assert_eq!(filler.pending_fills.lock().len(), 1);
        drop(second);
        assert!(filler.pending_fills.lock().is_empty());
    }

    #[tokio::test]
    async fn the_bytes_of_all_fills_are_bounded_and_each_returns_its_own() {
        let filler = filler();
        let (mut one, mut two) = (filler.fill_permit(), filler.fill_permit());
        assert!(one.try_grow(BUFFERED_BYTES - 1) && two.try_grow(1));
        assert!(!one.try_grow(1) && !two.try_grow(1));
        drop(two);
        assert!(!one.try_grow(2) && one.try_grow(1));
        drop(one);
        assert!(filler.buffered_bytes.try_take(BUFFERED_BYTES).is_some());
    }
}
