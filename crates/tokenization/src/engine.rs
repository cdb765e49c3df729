//! Tokens from engines: by `/tokenize` for models without local tokenizer files, by
//! `/v1/chat/completions/render` for chats with images, audio or videos.
//!
//! A request waits for this, so everything is bounded: the time and size of a query, the number of
//! workers it goes to (one), the queries at one worker at a time, and the number and age of cached
//! answers. Equal queries at the same time are one query. A worker that keeps failing is paused,
//! and prompts are identified by their text meanwhile. Where routers share answers, an engine gets
//! only `/tokenize` queries that no router has an answer to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use dialect::RequestView;
use fleet::WorkerView;
use kv_blocks::Moment;
use parking_lot::Mutex;
use proxy::QueryError;
use resilience::{ByteBudget, Singleflight};
use routing::RoutingSection;
use tokio::sync::OnceCell;

use crate::{
    breaker::{FailedQuery, TokenizeFailure, TokenizerBreakers},
    compute_pool::ComputePool,
    engine_query::{EngineQuery, QueryKind},
    local,
    render_limits::RenderLimits,
    render_query, render_reply,
    shared::{RedisTokenStore, TokenScope},
    stage::TokenizationInput,
    token_cache::{self, PromptTokens, QueryDigest, TokenCache, TokenSource, UNCONFIGURED_TTL},
    tokenize_query,
    worker_client::WorkerClient,
};

/// Time limit of a `/tokenize` query, in tokenization budgets: over loopback or a rack's network a
/// query takes some ten times as long as a local computation. 50 ms with the default budget of
/// 2 ms.
const BUDGETS: u32 = 25;
/// Cost to parse an answer, per byte.
const COST_PER_BYTE: Duration = Duration::from_nanos(6);
/// Bytes of all render queries in flight and of their answers; further chats are identified by
/// their text.
const RENDER_BYTES: usize = 64 << 20;

/// The tokens of a prompt, and whether they come from a cache.
#[derive(Clone, Debug)]
pub(crate) struct EngineTokens {
    pub(crate) prompt: PromptTokens,
    pub(crate) from_cache: bool,
}

/// Gets tokens from engines.
#[derive(Debug)]
pub struct EngineTokenizer {
    workers: WorkerClient,
    /// Time limit of a `/tokenize` query.
    longest: Duration,
    /// Time limit of a render query; zero: none is sent.
    longest_render: Duration,
    render_bytes: ByteBudget,
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
    tokenize: TokenizerBreakers,
    render: TokenizerBreakers,
    render_limits: RenderLimits,
}

impl EngineTokenState {
    /// Returns whether the worker may get the query now.
    fn allows(&self, worker: &WorkerView, query: &EngineQuery, now: Moment) -> bool {
        match query.kind {
            QueryKind::Tokenize => self.tokenize.allows(worker.id, now),
            QueryKind::Render => {
                self.render_limits.allows(worker, query.body.len(), now)
                    && self.render.allows(worker.id, now)
            }
        }
    }

    fn breakers(&mut self, kind: QueryKind) -> &mut TokenizerBreakers {
        match kind {
            QueryKind::Tokenize => &mut self.tokenize,
            QueryKind::Render => &mut self.render,
        }
    }
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
            longest_render: section.render_timeout,
            render_bytes: ByteBudget::new(RENDER_BYTES),
            ttl,
            shared,
            next_worker: AtomicUsize::new(0),
            state: Mutex::new(EngineTokenState {
                cache: TokenCache::new(ttl, capacity),
                tokenize: TokenizerBreakers::default(),
                render: TokenizerBreakers::default(),
                render_limits: RenderLimits::default(),
            }),
            queries: Singleflight::default(),
        }
    }

    /// Returns the engine's token ids of the prompt; `None` if they do not arrive in time.
    pub(crate) async fn tokens(&self, input: TokenizationInput<'_>) -> Option<EngineTokens> {
        let query = input
            .work(tokenize_query::cost(input.view), tokenize_query::build)
            .await
            .flatten()?;
        self.answer(query, input).await
    }

    /// Returns the engine's tokens of a chat with media; `None` also for a chat of text.
    pub(crate) async fn rendered(&self, input: TokenizationInput<'_>) -> Option<EngineTokens> {
        if self.longest_render.is_zero() || !self.may_render(&input.view.model) {
            return None;
        }
        let (cost, body) = (render_query::cost(input.bytes.len()), input.bytes.clone());
        let build = move |view: &RequestView<'_>| render_query::build(view, &body);
        let most = input.bytes.len().saturating_add(render_reply::LONGEST);
        let _permit = self.render_bytes.try_take(most)?;
        let query = input.work(cost, build).await.flatten()?;
        self.answer(query, input).await
    }

    /// Returns whether a worker of the model may have the route.
    fn may_render(&self, model: &str) -> bool {
        let snapshot = self.workers.fleet.snapshot();
        let (state, now) = (self.state.lock(), self.workers.clock.now());
        snapshot.model(model).is_some_and(|model| {
            let mut candidates = model.candidates.iter();
            candidates.any(|one| state.render_limits.allows(&one.worker, 0, now))
        })
    }

    /// Returns the answer to a query, from the cache or from an engine, within the request's time.
    async fn answer(
        &self,
        query: EngineQuery,
        input: TokenizationInput<'_>,
    ) -> Option<EngineTokens> {
        let digest = query.digest;
        let snapshot = self.workers.fleet.snapshot();
        let known = |source: &TokenSource| source.is_current(&snapshot);
        // An answer is cached before its query ends, so one of the two is found.
        let flight = {
            let mut state = self.state.lock();
            if let Some(prompt) = state.cache.get(&digest, self.workers.clock.now(), known) {
                return Some(EngineTokens {
                    prompt,
                    from_cache: true,
                });
            }
            self.queries.join(digest)
        };
        // The request that began the query may be cancelled: the next waiting one then takes it
        // over.
        let found =
            flight.get_or_init(|| self.query_worker(&input.view.model, query, input.compute_pool));
        let left = input.deadline.since(self.workers.clock.now());
        tokio::time::timeout(left, found).await.ok()?.clone()
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
        query: EngineQuery,
        compute_pool: &ComputePool,
    ) -> Option<EngineTokens> {
        if query.kind == QueryKind::Tokenize
            && let Some(ids) = self.find_shared(model, &query.digest).await
        {
            return Some(EngineTokens {
                prompt: ids.into(),
                from_cache: true,
            });
        }
        let turn = self.next_worker(model, &query)?;
        let worker = &turn.worker;
        let (kind, digest, length) = (query.kind, query.digest, query.body.len());
        let longest = match kind {
            QueryKind::Tokenize => self.longest,
            QueryKind::Render => self.longest_render,
        };
        let answer =
            tokio::time::timeout(longest, self.post_query(worker, query, compute_pool)).await;
        let mut state = self.state.lock();
        let now = self.workers.clock.now();
        let why = match answer.unwrap_or(Err(TokenizeFailure::Late)) {
            Ok(prompt) => {
                state.breakers(kind).record_success(worker.id);
                state.cache.insert(
                    digest,
                    token_cache::CachedTokens {
                        prompt: prompt.clone(),
                        source: TokenSource::of(worker),
                        received_at: now,
                        left: Duration::MAX,
                    },
                );
                drop(state);
                if kind == QueryKind::Tokenize
                    && let Some(shared) = &self.shared
                {
                    let scope = TokenScope::of(worker, model);
                    shared.store(&digest, scope, &prompt.ids, self.ttl);
                }
                return Some(EngineTokens {
                    prompt,
                    from_cache: false,
                });
            }
            Err(why) => why,
        };
        if kind == QueryKind::Render {
            let limits = &mut state.render_limits;
            match why {
                TokenizeFailure::Absent => limits.record_absence(TokenSource::of(worker), now),
                TokenizeFailure::Late | TokenizeFailure::Broken => {
                    limits.record_failure(worker.id, length, now);
                }
                TokenizeFailure::Refused | TokenizeFailure::Unreachable => {}
            }
        }
        let rest = state.breakers(kind).record_failure(
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
        let answer = token_cache::CachedTokens {
            prompt: Arc::clone(&found.ids).into(),
            source: TokenSource::of(worker),
            received_at: self.workers.clock.now(),
            left: found.left,
        };
        self.state.lock().cache.insert(*digest, answer);
        Some(found.ids)
    }

    /// Returns the next worker in turn that serves the model and may get the query.
    fn next_worker(&self, model: &str, query: &EngineQuery) -> Option<QueryPermit<'_>> {
        let snapshot = self.workers.fleet.snapshot();
        let model = snapshot.model(model).filter(|model| !model.panic)?;
        let now = self.workers.clock.now();
        let mut state = self.state.lock();
        let there = |worker| snapshot.worker(worker).is_some();
        state.breakers(query.kind).retain_workers(there);
        state.render_limits.retain_workers(there);
        let free: Vec<_> = model
            .candidates
            .iter()
            .filter(|one| state.allows(&one.worker, query, now))
            .collect();
        let turn = self
            .next_worker
            .fetch_add(1, Relaxed)
            .checked_rem(free.len())?;
        let worker = Arc::clone(&free.get(turn)?.worker);
        state.breakers(query.kind).begin_query(worker.id);
        Some(QueryPermit {
            state: &self.state,
            kind: query.kind,
            worker,
        })
    }

    async fn post_query(
        &self,
        worker: &WorkerView,
        query: EngineQuery,
        compute_pool: &ComputePool,
    ) -> Result<PromptTokens, TokenizeFailure> {
        let EngineQuery { kind, body, .. } = query;
        let most = kind.longest_answer(body.len());
        let answered = self
            .workers
            .post_until(worker, kind.path(), body, most, kind.end_mark())
            .await
            .map_err(|why| match why {
                QueryError::Unreachable => TokenizeFailure::Unreachable,
                QueryError::Lost => TokenizeFailure::Late,
                QueryError::Broken => TokenizeFailure::Broken,
            })?;
        match answered.status {
            200 => {
                let cost = local::cost_of(answered.body.len(), COST_PER_BYTE);
                let read = compute_pool.run(cost, move || kind.read(&answered)).await;
                read.flatten().ok_or(TokenizeFailure::Broken)
            }
            404 | 405 | 501 if kind == QueryKind::Render => Err(TokenizeFailure::Absent),
            400 | 413 | 422 => Err(TokenizeFailure::Refused),
            _ => Err(TokenizeFailure::Broken),
        }
    }
}

/// A query in flight at a worker, until dropped.
struct QueryPermit<'a> {
    state: &'a Mutex<EngineTokenState>,
    kind: QueryKind,
    worker: Arc<WorkerView>,
}

impl Drop for QueryPermit<'_> {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.breakers(self.kind).end_query(self.worker.id);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dialect::Dialect;
    use fleet::WorkerState;
    use kv_blocks::{MediaItem, PromptMedia, WorkerId};
    use net::Clock;
    use proxy::{FakeReply, FakeUpstream, NotSent, SendFailure};

    use super::*;

    fn worker() -> WorkerView {
        let url = "http://127.0.0.1:1".parse().expect("a URL");
        let mut worker = WorkerView::unknown(WorkerId(1), "w1".into(), url, Clock::system().wall());
        worker.health.state = WorkerState::Ready;
        worker
    }

    /// Returns the answer of an engine with this reply to a query of this kind.
    async fn answer(kind: QueryKind, reply: FakeReply) -> Result<PromptTokens, TokenizeFailure> {
        let upstream = Arc::<FakeUpstream>::default();
        upstream.script(WorkerId(1), reply);
        let engine = crate::stage::tests::engine(&upstream);
        let query = EngineQuery {
            kind,
            body: Bytes::from_static(b"{}"),
            digest: QueryDigest::default(),
        };
        let pool = ComputePool::new(1);
        let answer = engine.post_query(&worker(), query, &pool).await;
        let request = upstream.take_requests().pop().expect("one query");
        assert_eq!(request.uri(), kind.path());
        answer
    }

    #[tokio::test]
    async fn a_request_waits_for_no_answer_beyond_its_own_time() {
        let engine = crate::stage::tests::engine(&Arc::default());
        let chat = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
        let bytes = Bytes::from_static(chat.as_bytes());
        let view = dialect::view(Dialect::Chat, &bytes).expect("a good body");
        let query = EngineQuery {
            kind: QueryKind::Render,
            body: bytes.clone(),
            digest: QueryDigest::default(),
        };
        let pool = ComputePool::new(1);
        let input = TokenizationInput {
            dialect: Dialect::Chat,
            bytes: &bytes,
            view: &view,
            compute_pool: &pool,
            deadline: engine.workers.clock.now(),
        };
        let flight = engine.queries.join(query.digest);
        let silent = flight.get_or_init(std::future::pending::<Option<EngineTokens>>);
        tokio::select! {
            biased;
            _ = silent => panic!("it never ends"),
            answer = engine.answer(query, input) => assert!(answer.is_none()),
        }
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
            let answer = answer(QueryKind::Tokenize, reply).await;
            let expected =
                expected.map(|ids: Vec<u32>| PromptTokens::from(Arc::<[u32]>::from(ids)));
            assert_eq!(answer, expected, "{what}");
        }
    }

    #[tokio::test]
    async fn a_rendered_chat_has_items_and_an_engine_without_the_route_says_so() {
        use TokenizeFailure::{Absent, Broken, Refused};
        let whole = r#"{"token_ids":[1,9,9],"features":{"mm_hashes":{"image":["a"]},
            "mm_placeholders":{"image":[{"offset":1,"length":2}]},"kwargs_data":null},"sampling_params":{}}"#;
        let item = MediaItem {
            identifier: "a".into(),
            offset: 1,
            length: 2,
        };
        let prompt = PromptTokens {
            ids: Arc::from([1, 9, 9]),
            media: PromptMedia::new(vec![item]).expect("one item"),
        };
        let long = vec![b' '; render_reply::LONGEST + 1];
        let tensors = format!(r#":{{"image":["{}"]}}"#, "A".repeat(render_reply::LONGEST));
        let with_tensors = whole.replace(":null", &tensors);
        for (reply, expected) in [
            (FakeReply::json(200, whole), Ok(prompt.clone())),
            (FakeReply::json(200, with_tensors), Ok(prompt)),
            (FakeReply::json(200, r#"{"token_ids":[1]}"#), Err(Broken)),
            (FakeReply::json(200, long), Err(Broken)),
            (FakeReply::json(404, "{}"), Err(Absent)),
            (FakeReply::json(405, "{}"), Err(Absent)),
            (FakeReply::json(501, "{}"), Err(Absent)),
            (FakeReply::json(400, "{}"), Err(Refused)),
            (FakeReply::json(500, "{}"), Err(Broken)),
        ] {
            let what = format!("{reply:.200?}");
            assert_eq!(answer(QueryKind::Render, reply).await, expected, "{what}");
        }
    }
}
