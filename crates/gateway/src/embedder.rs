//! Vectors of texts, from a worker's `/v1/embeddings`.
//!
//! For whoever asks by meaning: semantic clusters, and kept replies to questions that mean the same.
//!
//! **Invariant**: nobody who serves a request asks for a while after the worker failed, nor where many ask already.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fleet::{Fleet, WorkerView};
use kv_blocks::Moment;
use net::Clock;
use parking_lot::Mutex;
use response_cache::UnitVector;
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::{
    request::{WorkerQuery, WorkerQueryError, query_worker},
    upstream::ConnectionPools,
};

/// Bytes of an answer for each text: 4096 numbers, and some room.
const BYTES_PER_TEXT: usize = 256 << 10;
/// Questions of requests on their way at once; a request that finds no room goes without.
const ASKING: usize = 64;
/// No request asks for so long after a failure: a server that hangs would cost every one of them the whole time limit.
const REST: Duration = Duration::from_secs(1);

/// Asks for vectors.
#[derive(Debug)]
pub(crate) struct Embedder {
    fleet: Arc<Fleet>,
    pools: ConnectionPools,
    clock: Clock,
    connect_timeout: Duration,
    model: Arc<str>,
    /// Workers take turns.
    next_endpoint: AtomicUsize,
    asking: Semaphore,
    rests_until: Mutex<Moment>,
}

/// Why there are no vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmbeddingError {
    /// No worker that serves the model is ready.
    NoWorker,
    /// It did not answer in time, or in the form of the API.
    NoAnswer,
    /// It does not take these texts, and may take others: one may be too long for it.
    Refused,
    /// It is not asked for now.
    Resting,
}

impl EmbeddingError {
    /// Of an answer with this status.
    fn of(status: u16) -> Self {
        match status {
            // What speaks of the worker, or of whoever asks: the next question would fare no better.
            401 | 403 | 404 | 408 | 429 => Self::NoAnswer,
            400..500 => Self::Refused,
            _ => Self::NoAnswer,
        }
    }
}

impl Embedder {
    pub(crate) fn new(
        fleet: Arc<Fleet>,
        pools: ConnectionPools,
        clock: Clock,
        connect_timeout: Duration,
        model: Arc<str>,
    ) -> Self {
        let (turn, asking, rests_until) = (
            AtomicUsize::new(0),
            Semaphore::new(ASKING),
            Mutex::new(Moment::START),
        );
        Self {
            fleet,
            pools,
            clock,
            connect_timeout,
            model,
            next_endpoint: turn,
            asking,
            rests_until,
        }
    }

    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The direction of what a request says, within `limit`.
    pub(crate) async fn embed(
        &self,
        text: &str,
        limit: Duration,
    ) -> Result<UnitVector, EmbeddingError> {
        if self.clock.now() < *self.rests_until.lock() {
            return Err(EmbeddingError::Resting);
        }
        // Closed never; full means that the worker is far behind.
        let _seat = self
            .asking
            .try_acquire()
            .map_err(|_| EmbeddingError::Resting)?;
        match self.embed_all(&[text], limit).await {
            Ok(directions) => directions
                .into_iter()
                .next()
                .ok_or(EmbeddingError::NoAnswer),
            Err(why) => {
                if why != EmbeddingError::Refused {
                    *self.rests_until.lock() = self.clock.now() + REST;
                }
                Err(why)
            }
        }
    }

    /// The directions of these texts, in their order, within `limit`.
    pub(crate) async fn embed_all(
        &self,
        texts: &[&str],
        limit: Duration,
    ) -> Result<Vec<UnitVector>, EmbeddingError> {
        let worker = self.next_worker().ok_or(EmbeddingError::NoWorker)?;
        let body = serde_json::json!({"model": &*self.model, "input": texts}).to_string();
        let question = WorkerQuery {
            worker: &worker,
            path: "/v1/embeddings",
            body: body.into(),
            most_bytes: BYTES_PER_TEXT * texts.len(),
            connect_timeout: self.connect_timeout,
        };
        let answer =
            tokio::time::timeout(limit, query_worker(&self.pools, self.clock, question)).await;
        let directions = match answer.unwrap_or(Err(WorkerQueryError::Lost)) {
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

    /// The one whose turn it is, of those that serve the model and are well.
    fn next_worker(&self) -> Option<Arc<WorkerView>> {
        let snapshot = self.fleet.snapshot();
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

/// One direction for each of so many texts; `None` if that is not what the reply says.
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

    use super::*;

    #[test]
    #[contract("V44")]
    fn only_what_speaks_of_the_texts_is_no_fault_of_the_worker() {
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
    fn vectors_are_told_apart_by_their_index_and_a_reply_that_lacks_one_is_none() {
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
}
