//! Tokens from the engine's own `/tokenize`, for models without local tokenizer files.
//!
//! A request waits for this, so everything is bounded: the time and size of a query, the number of
//! workers it goes to (one), the queries at one worker at a time, and the number and age of cached
//! answers. Equal queries at the same time are one query. A worker that keeps failing is paused,
//! and prompts are identified by their text meanwhile. Where routers share answers, an engine gets
//! only queries that no router has an answer to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use fleet::WorkerView;
use parking_lot::Mutex;
use proxy::QueryError;
use resilience::Singleflight;
use routing::RoutingSection;
use serde::Deserialize;
use tokio::sync::OnceCell;

use crate::{
    breaker::{FailedQuery, TokenizeFailure, TokenizerBreakers},
    compute_pool::ComputePool,
    local,
    shared::{RedisTokenStore, TokenScope},
    stage::TokenizationInput,
    token_cache::{self, QueryDigest, TokenCache, TokenSource, UNCONFIGURED_TTL},
    tokenize_query::TokenizeQuery,
    worker_client::WorkerClient,
};

/// Time limit of a query, in tokenization budgets: over loopback or a rack's network a query takes
/// some ten times as long as a local computation. 50 ms with the default budget of 2 ms.
const BUDGETS: u32 = 25;
/// Bytes of an answer per byte of the query: a token has at least one byte, and its id at most
/// seven with a comma.
const ANSWER_FACTOR: usize = 8;
/// Bytes of an answer that do not depend on the query.
const ANSWER_SLACK: usize = 4 << 10;
/// Cost to parse an answer, per byte.
const COST_PER_BYTE: Duration = Duration::from_nanos(6);

/// Token ids, and whether they come from a cache.
#[derive(Clone, Debug)]
pub(crate) struct EngineTokens {
    pub(crate) tokens: Arc<[u32]>,
    pub(crate) from_cache: bool,
}

/// Gets tokens from engines.
#[derive(Debug)]
pub struct EngineTokenizer {
    workers: WorkerClient,
    longest: Duration,
    /// How long an answer stays valid.
    ttl: Duration,
    shared: Option<RedisTokenStore>,
    /// Round-robin position.
    next_worker: AtomicUsize,
    state: Mutex<EngineTokenState>,
    /// Queries in flight: at most one per waiting request.
    queries: Singleflight<QueryDigest, OnceCell<Option<EngineTokens>>>,
}

#[derive(Debug)]
struct EngineTokenState {
    cache: TokenCache,
    breakers: TokenizerBreakers,
}

impl EngineTokenizer {
    /// Returns a tokenizer with an empty cache. `shared`: the store that routers share.
    pub fn new(
        workers: WorkerClient,
        section: &RoutingSection,
        shared: Option<RedisTokenStore>,
    ) -> Self {
        let cache = (section.lmcache.as_ref()).map(|lmcache| &lmcache.prompt_cache);
        let ttl = cache.map_or(UNCONFIGURED_TTL, |cache| cache.ttl);
        let capacity = cache.map_or(usize::MAX, |cache| cache.capacity.get());
        Self {
            workers,
            longest: section.tokenize_budget.saturating_mul(BUDGETS),
            ttl,
            shared,
            next_worker: AtomicUsize::new(0),
            state: Mutex::new(EngineTokenState {
                cache: TokenCache::new(ttl, capacity),
                breakers: TokenizerBreakers::default(),
            }),
            queries: Singleflight::default(),
        }
    }

    /// Returns the engine's token ids of the prompt; `None` if they do not arrive in time.
    pub(crate) async fn tokens(&self, input: TokenizationInput<'_>) -> Option<EngineTokens> {
        let query = input
            .work(TokenizeQuery::cost(input.view), TokenizeQuery::build)
            .await
            .flatten()?;
        let digest = query.digest;
        let snapshot = self.workers.fleet.snapshot();
        let known = |source: &TokenSource| source.is_current(&snapshot);
        // An answer is cached before its query ends, so one of the two is found.
        let flight = {
            let mut state = self.state.lock();
            if let Some(tokens) = state.cache.get(&digest, self.workers.clock.now(), known) {
                return Some(EngineTokens {
                    tokens,
                    from_cache: true,
                });
            }
            self.queries.join(digest)
        };
        // The request that began the query may be cancelled: the next waiting one then takes it
        // over.
        flight
            .get_or_init(|| self.query_worker(&input.view.model, query, input.compute_pool))
            .await
            .clone()
    }

    /// Sets whether new answers are cached.
    pub(crate) fn set_accepts_new(&self, takes: bool) {
        self.state.lock().cache.set_accepts_new(takes);
    }

    /// Drops answers that were not used recently.
    pub(crate) fn shrink(&self) {
        self.state.lock().cache.shrink();
    }

    async fn query_worker(
        &self,
        model: &str,
        query: TokenizeQuery,
        compute_pool: &ComputePool,
    ) -> Option<EngineTokens> {
        if let Some(tokens) = self.find_shared(model, &query.digest).await {
            return Some(EngineTokens {
                tokens,
                from_cache: true,
            });
        }
        let turn = self.next_worker(model)?;
        let worker = &turn.worker;
        let TokenizeQuery { body, digest } = query;
        let length = body.len();
        let answer =
            tokio::time::timeout(self.longest, self.post_query(worker, body, compute_pool)).await;
        let mut state = self.state.lock();
        let now = self.workers.clock.now();
        let why = match answer.unwrap_or(Err(TokenizeFailure::Late)) {
            Ok(tokens) => {
                let tokens: Arc<[u32]> = tokens.into();
                state.breakers.record_success(worker.id);
                let (ids, source) = (Arc::clone(&tokens), TokenSource::of(worker));
                state.cache.insert(
                    digest,
                    token_cache::CachedTokens {
                        ids,
                        source,
                        received_at: now,
                        left: Duration::MAX,
                    },
                );
                drop(state);
                if let Some(shared) = &self.shared {
                    shared.store(&digest, TokenScope::of(worker, model), &tokens, self.ttl);
                }
                return Some(EngineTokens {
                    tokens,
                    from_cache: false,
                });
            }
            Err(why) => why,
        };
        let rest = state.breakers.record_failure(
            worker.id,
            FailedQuery {
                why,
                digest,
                length,
            },
            now,
        );
        drop(state);
        tracing::debug!(worker = %worker.name, ?why, ?rest, "no tokens from the engine");
        None
    }

    /// Looks up the answer that an equal engine gave another router.
    async fn find_shared(&self, model: &str, digest: &QueryDigest) -> Option<Arc<[u32]>> {
        let shared = self.shared.as_ref()?;
        let snapshot = self.workers.fleet.snapshot();
        // One worker stands for all: while their versions differ, some answers are not found.
        let worker = &snapshot
            .model(model)
            .filter(|model| !model.panic)?
            .candidates
            .first()?
            .worker;
        let found = shared.find(digest, TokenScope::of(worker, model)).await?;
        let (ids, source) = (Arc::clone(&found.ids), TokenSource::of(worker));
        let answer = token_cache::CachedTokens {
            ids,
            source,
            received_at: self.workers.clock.now(),
            left: found.left,
        };
        self.state.lock().cache.insert(*digest, answer);
        Some(found.ids)
    }

    /// Returns the next worker in turn that serves the model and that its breaker allows.
    fn next_worker(&self, model: &str) -> Option<QueryPermit<'_>> {
        let snapshot = self.workers.fleet.snapshot();
        let model = snapshot.model(model).filter(|model| !model.panic)?;
        let now = self.workers.clock.now();
        let mut state = self.state.lock();
        state
            .breakers
            .retain_workers(|worker| snapshot.worker(worker).is_some());
        let may = |worker| state.breakers.allows(worker, now);
        let free: Vec<_> = model
            .candidates
            .iter()
            .filter(|one| may(one.target.worker))
            .collect();
        let turn = self
            .next_worker
            .fetch_add(1, Relaxed)
            .checked_rem(free.len())?;
        let worker = Arc::clone(&free.get(turn)?.worker);
        state.breakers.begin_query(worker.id);
        Some(QueryPermit {
            state: &self.state,
            worker,
        })
    }

    async fn post_query(
        &self,
        worker: &WorkerView,
        body: Bytes,
        compute_pool: &ComputePool,
    ) -> Result<Vec<u32>, TokenizeFailure> {
        let most = body.len() * ANSWER_FACTOR + ANSWER_SLACK;
        let answered = self
            .workers
            .post(worker, "/tokenize", body, most)
            .await
            .map_err(|why| match why {
                QueryError::Unreachable => TokenizeFailure::Unreachable,
                QueryError::Lost => TokenizeFailure::Late,
                QueryError::Broken => TokenizeFailure::Broken,
            })?;
        match answered.status {
            200 => {
                let cost = local::cost_of(answered.body.len(), COST_PER_BYTE);
                let read = compute_pool
                    .run(cost, move || {
                        serde_json::from_slice::<EngineTokenizeReply>(&answered.body)
                    })
                    .await;
                read.and_then(Result::ok)
                    .map(|reply| reply.tokens)
                    .ok_or(TokenizeFailure::Broken)
            }
            400 | 413 | 422 => Err(TokenizeFailure::Refused),
            _ => Err(TokenizeFailure::Broken),
        }
    }
}

/// A query in flight at a worker, until dropped.
struct QueryPermit<'a> {
    state: &'a Mutex<EngineTokenState>,
    worker: Arc<WorkerView>,
}

impl Drop for QueryPermit<'_> {
    fn drop(&mut self) {
        self.state.lock().breakers.end_query(self.worker.id);
    }
}

#[derive(Deserialize)]
struct EngineTokenizeReply {
    tokens: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use fleet::WorkerState;
    use kv_blocks::WorkerId;
    use net::Clock;
    use proxy::{FakeReply, FakeUpstream, NotSent, SendFailure};

    use super::*;

    fn worker() -> WorkerView {
        let url = "http://127.0.0.1:1".parse().expect("a URL");
        let mut worker = WorkerView::unknown(WorkerId(1), "w1".into(), url, Clock::system().wall());
        worker.health.state = WorkerState::Ready;
        worker
    }

    #[tokio::test]
    async fn an_engines_answer_is_read_whole_or_says_why_not() {
        use TokenizeFailure::{Broken, Late, Refused, Unreachable};
        let fail = FakeReply::failure;
        for (reply, expected) in [
            (
                FakeReply::json(200, r#"{"tokens":[1,2],"count":2}"#),
                Ok(vec![1, 2]),
            ),
            (FakeReply::json(200, r#"{"tokens":[]}"#), Ok(vec![])),
            (FakeReply::json(200, r#"{"count":2}"#), Err(Broken)),
            (FakeReply::json(200, r#"{"tokens":[-1]}"#), Err(Broken)),
            (FakeReply::json(200, "1,2"), Err(Broken)),
            (FakeReply::json(200, vec![b' '; 10_000]), Err(Broken)),
            (FakeReply::json(400, "{}"), Err(Refused)),
            (FakeReply::json(413, "{}"), Err(Refused)),
            (FakeReply::json(422, "{}"), Err(Refused)),
            (FakeReply::json(404, "{}"), Err(Broken)),
            (FakeReply::json(500, "{}"), Err(Broken)),
            (fail(SendFailure::NoHead), Err(Late)),
            (fail(SendFailure::Protocol), Err(Broken)),
            (
                fail(SendFailure::NotSent(NotSent::Refused)),
                Err(Unreachable),
            ),
        ] {
            let what = format!("{reply:.200?}");
            let upstream = Arc::<FakeUpstream>::default();
            upstream.script(WorkerId(1), reply);
            let engine = crate::stage::tests::engine(&upstream);
            let (pool, body) = (ComputePool::new(1), Bytes::from_static(b"{}"));
            let answer = engine.post_query(&worker(), body, &pool).await;
            assert_eq!(format!("{answer:?}"), format!("{expected:?}"), "{what}");
            let request = upstream.take_requests().pop().expect("one query");
            assert_eq!(request.uri(), "/tokenize");
        }
    }
}
