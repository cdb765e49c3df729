//! Embeddings of texts, from a worker's `/v1/embeddings`.
//!
//! For semantic clusters and for the similarity lookup of the response cache.
//!
//! **Invariant**: no request waits for embeddings for a while after the worker failed, nor while
//! too many already wait.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fleet::WorkerView;
use parking_lot::Mutex;
use proxy::QueryError;
use resilience::{Backoff, CircuitBreaker};
use response_cache::UnitVector;
use serde::Deserialize;
use tokenization::WorkerClient;
use tokio::sync::Semaphore;

/// Most bytes of an answer per text: 4096 numbers with some margin.
const BYTES_PER_TEXT: usize = 256 << 10;
/// Most concurrent queries for requests; a request beyond that goes on without its embedding.
const MOST_QUERIES: usize = 64;
/// Pause after a failure: a server that hangs would cost every request the whole time limit.
const PAUSE: Duration = Duration::from_secs(1);

/// Gets embeddings from workers.
#[derive(Debug)]
pub(crate) struct Embedder {
    workers: WorkerClient,
    model: Arc<str>,
    /// Round-robin position.
    next_endpoint: AtomicUsize,
    permits: Semaphore,
    breaker: Mutex<CircuitBreaker>,
}

/// The reason why there are no embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmbeddingError {
    /// No worker that serves the model is ready.
    NoWorker,
    /// The worker did not answer in time, or not in the form of the API.
    NoAnswer,
    /// The worker refuses these texts and may accept others: one may be too long.
    Refused,
    /// Queries are paused.
    Paused,
}

impl EmbeddingError {
    /// Returns the error for an answer with this status.
    fn of(status: u16) -> Self {
        match status {
            // These concern the worker or the router's access: the next query would fail too.
            401 | 403 | 404 | 408 | 429 => Self::NoAnswer,
            400..500 => Self::Refused,
            _ => Self::NoAnswer,
        }
    }
}

impl Embedder {
    pub(crate) fn new(workers: WorkerClient, model: Arc<str>) -> Self {
        Self {
            workers,
            model,
            next_endpoint: AtomicUsize::new(0),
            permits: Semaphore::new(MOST_QUERIES),
            breaker: Mutex::new(CircuitBreaker::new(1, Backoff::new(PAUSE, PAUSE))),
        }
    }

    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// Returns the direction of a request's text, within `limit`.
    pub(crate) async fn embed(
        &self,
        text: &str,
        limit: Duration,
    ) -> Result<UnitVector, EmbeddingError> {
        if self.breaker.lock().is_open(self.workers.clock.now()) {
            return Err(EmbeddingError::Paused);
        }
        // Never closed; a full semaphore means that the worker is far behind.
        let _permit = self
            .permits
            .try_acquire()
            .map_err(|_| EmbeddingError::Paused)?;
        match self.embed_all(&[text], limit).await {
            Ok(directions) => directions
                .into_iter()
                .next()
                .ok_or(EmbeddingError::NoAnswer),
            Err(why) => {
                if why != EmbeddingError::Refused {
                    self.breaker.lock().record_failure(self.workers.clock.now());
                }
                Err(why)
            }
        }
    }

    /// Returns the directions of these texts, in their order, within `limit`.
    pub(crate) async fn embed_all(
        &self,
        texts: &[&str],
        limit: Duration,
    ) -> Result<Vec<UnitVector>, EmbeddingError> {
        let worker = self.next_worker().ok_or(EmbeddingError::NoWorker)?;
        let body = serde_json::json!({"model": &*self.model, "input": texts}).to_string();
        let most_bytes = BYTES_PER_TEXT * texts.len();
        let query = self
            .workers
            .post(&worker, "/v1/embeddings", body.into(), most_bytes);
        let answer = tokio::time::timeout(limit, query).await;
        let directions = match answer.unwrap_or(Err(QueryError::Lost)) {
            Ok(answered) if answered.status == 200 => {
                read(&answered.body, texts.len()).ok_or(EmbeddingError::NoAnswer)
            }
            Ok(answered) => Err(EmbeddingError::of(answered.status)),
            Err(_) => Err(EmbeddingError::NoAnswer),
        };
        if let Err(why) = &directions {
            tracing::debug!(worker = %worker.name, texts = texts.len(), ?why, "no vectors from the worker");
        }
        directions
    }

    /// Returns the next worker in turn that serves the model and is healthy.
    fn next_worker(&self) -> Option<Arc<WorkerView>> {
        let snapshot = self.workers.fleet.snapshot();
        let model = snapshot.model(&self.model).filter(|model| !model.panic)?;
        let turn = self
            .next_endpoint
            .fetch_add(1, Relaxed)
            .checked_rem(model.candidates.len())?;
        Some(Arc::clone(&model.candidates.get(turn)?.worker))
    }
}

#[derive(Deserialize)]
struct EmbeddingReply {
    data: Vec<EmbeddingItem>,
}

#[derive(Deserialize)]
struct EmbeddingItem {
    index: usize,
    embedding: Vec<f32>,
}

/// Parses one direction for each text; `None` if the reply lacks one.
fn read(body: &[u8], texts: usize) -> Option<Vec<UnitVector>> {
    let EmbeddingReply { mut data } = serde_json::from_slice(body).ok()?;
    data.sort_unstable_by_key(|item| item.index);
    let complete =
        data.len() == texts && data.iter().enumerate().all(|(at, item)| item.index == at);
    complete.then(|| {
        data.into_iter()
            .map(|item| UnitVector::of(item.embedding))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use proxy::FakeReply;

    use super::*;
    use crate::request::test_gateway::TestGateway;

    #[test]
    #[contract("V44")]
    fn only_statuses_about_the_input_do_not_blame_the_worker() {
        for status in [400, 413, 415, 422] {
            assert_eq!(
                EmbeddingError::of(status),
                EmbeddingError::Refused,
                "{status}"
            );
        }
        for status in [401, 403, 404, 408, 429, 500, 502, 503, 301] {
            assert_eq!(
                EmbeddingError::of(status),
                EmbeddingError::NoAnswer,
                "{status}"
            );
        }
    }

    #[test]
    fn vectors_are_ordered_by_index_and_a_reply_that_lacks_one_is_rejected() {
        let body = br#"{"data": [{"index": 1, "embedding": [0.0, 2.0]}, {"index": 0, "embedding": [5.0, 0.0]}]}"#;
        let read_two = read(body, 2).expect("two vectors");
        assert_eq!(
            read_two,
            [
                UnitVector::of(vec![1.0, 0.0]),
                UnitVector::of(vec![0.0, 1.0])
            ]
        );
        assert_eq!(read(body, 1), None);
        assert_eq!(
            read(br#"{"data": [{"index": 1, "embedding": []}]}"#, 1),
            None
        );
        assert_eq!(
            read(br#"{"data": [{"index": 0, "embedding": "AAAA"}]}"#, 1),
            None
        );
        assert_eq!(read(b"{", 1), None);
    }
    const VECTOR: &str = r#"{"data":[{"index":0,"embedding":[1.0]}]}"#;

    #[tokio::test]
    async fn a_failure_of_the_worker_pauses_the_queries_and_a_refused_text_does_not() {
        for (reply, expected, next) in [
            (FakeReply::json(200, VECTOR), Ok(()), Ok(())),
            (
                FakeReply::json(400, "{}"),
                Err(EmbeddingError::Refused),
                Ok(()),
            ),
            (
                FakeReply::json(503, "{}"),
                Err(EmbeddingError::NoAnswer),
                Err(EmbeddingError::Paused),
            ),
            (
                FakeReply::json(200, "{}"),
                Err(EmbeddingError::NoAnswer),
                Err(EmbeddingError::Paused),
            ),
            (
                FakeReply::json(200, VECTOR).after(Duration::from_secs(3600)),
                Err(EmbeddingError::NoAnswer),
                Err(EmbeddingError::Paused),
            ),
        ] {
            let (test, worker) = TestGateway::with_worker().await;
            test.upstream.script(worker, reply);
            test.upstream.script(worker, FakeReply::json(200, VECTOR));
            let embedder = Embedder::new(test.worker_client(), "m".into());
            let limit = Duration::from_millis(50);
            assert_eq!(embedder.embed("a", limit).await.map(drop), expected);
            assert_eq!(embedder.embed("a", limit).await.map(drop), next);
            let sent = 1 + usize::from(next.is_ok());
            let requests = test.upstream.take_requests();
            assert_eq!(requests.len(), sent, "{expected:?}");
            assert_eq!(requests[0].uri(), "/v1/embeddings");
            let body: serde_json::Value = serde_json::from_slice(requests[0].body()).expect("JSON");
            assert_eq!(body, serde_json::json!({"model": "m", "input": ["a"]}));
        }
    }

    #[tokio::test]
    async fn without_a_worker_of_its_model_nothing_is_sent() {
        let (test, _) = TestGateway::with_worker().await;
        let embedder = Embedder::new(test.worker_client(), "other".into());
        let missing = embedder.embed("a", Duration::from_secs(1)).await;
        assert_eq!(missing.map(drop), Err(EmbeddingError::NoWorker));
        assert!(test.upstream.take_requests().is_empty());
    }
}
