//! One request for a publisher's history, over its own connection.
//!
//! A separate task reads the answer off the socket, however long the index needs for it: up to vLLM
//! 0.32 a publisher drops messages that exceed its queue for a reader, so a slow reader loses
//! batches.

use std::{sync::Arc, time::Duration};

use kv_events::frames::{self, FrameError, ReplayFrame};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
};
use zmtp::{Dealer, Disconnect, Endpoint, Limits};

/// Most bytes of batches read ahead. When they are used up the task stops reading, and TCP holds
/// the publisher back.
pub(crate) const AHEAD: usize = 64 << 20;
/// Cost of a batch besides its payload: its entry in the queue.
pub(crate) const ENTRY_BYTES: usize = 128;
/// Longest silence in the middle of an answer. A publisher sends its batches without a pause, so a
/// longer one means that the end marker was lost.
pub(crate) const PAUSE: Duration = Duration::from_secs(2);

/// Parts of a replay answer.
#[derive(Debug)]
pub(crate) enum ReplayEvent {
    Batch { seq: u64, payload: Vec<u8> },
    End,
    Failed(ReplayError),
}

/// Reasons for a failed request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error("replay endpoint {endpoint}: {source}")]
    Socket {
        endpoint: Endpoint,
        source: Disconnect,
    },
    #[error(
        "replay endpoint {endpoint} was silent for {limit:?}: check that it is the engine's replay_endpoint"
    )]
    Silent { endpoint: Endpoint, limit: Duration },
    #[error(
        "replay endpoint {endpoint} broke off: nothing for {limit:?} after {batches} batches, and no end marker"
    )]
    BrokeOff {
        endpoint: Endpoint,
        limit: Duration,
        batches: u64,
    },
    #[error("replay endpoint {endpoint}: {source}")]
    Frames {
        endpoint: Endpoint,
        source: FrameError,
    },
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Nats(#[from] crate::nats::NatsRequestError),
}

/// A running request. Dropping it ends it, closes its connection and discards the read-ahead.
#[derive(Debug)]
pub(crate) struct ReplayRun {
    answers: mpsc::UnboundedReceiver<QueuedReplayEvent>,
    task: JoinHandle<()>,
}

/// An answer with its share of the read-ahead bytes, held until it is taken.
#[derive(Debug)]
struct QueuedReplayEvent {
    answer: ReplayEvent,
    _room: Option<OwnedSemaphorePermit>,
}

impl ReplayRun {
    /// Runs `request`, which sends its answers to the given sender.
    pub(crate) fn spawn<F>(request: impl FnOnce(ReplaySender) -> F) -> Self
    where
        F: Future<Output = Result<(), ReplayError>> + Send + 'static,
    {
        // Bounded by the bytes that each queued batch holds.
        let (sender, answers) = mpsc::unbounded_channel();
        let failures = sender.clone();
        let exchange = request(ReplaySender {
            sender,
            ahead: Arc::new(Semaphore::new(AHEAD)),
        });
        let task = runtime::spawn(async move {
            if let Err(error) = exchange.await {
                let _ = failures.send(QueuedReplayEvent {
                    answer: ReplayEvent::Failed(error),
                    _room: None,
                });
            }
        });
        Self { answers, task }
    }

    /// Returns the next answer; `None` after the end or a failure. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<ReplayEvent> {
        self.answers.recv().await.map(|queued| queued.answer)
    }

    /// Returns the next answer if it has been read already.
    pub(crate) fn try_next(&mut self) -> Option<ReplayEvent> {
        self.answers.try_recv().ok().map(|queued| queued.answer)
    }
}

impl Drop for ReplayRun {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the next answer of the running request; waits forever while none runs.
pub(crate) async fn next_answer(replay: &mut Option<ReplayRun>) -> Option<ReplayEvent> {
    match replay {
        Some(replay) => replay.next().await,
        None => std::future::pending().await,
    }
}

/// Sender of a request's answers.
#[derive(Debug)]
pub(crate) struct ReplaySender {
    sender: mpsc::UnboundedSender<QueuedReplayEvent>,
    ahead: Arc<Semaphore>,
}

impl ReplaySender {
    /// Queues one batch once its bytes are free. A batch larger than the whole budget waits until
    /// the queue is empty. Returns whether the receiver is still there.
    pub(crate) async fn batch(&self, seq: u64, payload: &[u8]) -> bool {
        let bytes = payload.len().saturating_add(ENTRY_BYTES).min(AHEAD);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let answer = ReplayEvent::Batch {
            seq,
            payload: payload.to_vec(),
        };
        // The semaphore is never closed, so a permit always comes.
        let room = Arc::clone(&self.ahead).acquire_many_owned(bytes).await.ok();
        self.sender
            .send(QueuedReplayEvent {
                answer,
                _room: room,
            })
            .is_ok()
    }

    /// Marks the end of the answer.
    pub(crate) fn end(&self) {
        let _ = self.sender.send(QueuedReplayEvent {
            answer: ReplayEvent::End,
            _room: None,
        });
    }
}

/// A publisher's replay socket, and the limits of requests to it.
#[derive(Clone, Debug)]
pub(crate) struct ReplaySocket {
    pub(crate) endpoint: Endpoint,
    pub(crate) limits: Limits,
    /// Longest wait for the connection and for the first message; later messages may take as long,
    /// but 2 s at most.
    pub(crate) patience: Duration,
}

impl ReplaySocket {
    /// Requests everything from `from` on.
    pub(crate) fn history(self, from: u64) -> ReplayRun {
        ReplayRun::spawn(|answers| async move { request(self, from, &answers).await })
    }
}

async fn request(
    replay: ReplaySocket,
    from: u64,
    answers: &ReplaySender,
) -> Result<(), ReplayError> {
    let ReplaySocket {
        endpoint,
        limits,
        patience,
    } = &replay;
    let patience = *patience;
    let socket = |source| ReplayError::Socket {
        endpoint: endpoint.clone(),
        source,
    };
    let silent = |limit, batches| match batches {
        0 => ReplayError::Silent {
            endpoint: endpoint.clone(),
            limit,
        },
        _ => ReplayError::BrokeOff {
            endpoint: endpoint.clone(),
            limit,
            batches,
        },
    };
    let mut dealer = Dealer::connect(endpoint, limits.clone(), patience)
        .await
        .map_err(socket)?;
    dealer
        .send(&frames::replay_request(from))
        .await
        .map_err(socket)?;
    let mut limit = patience;
    for batches in 0.. {
        let message = tokio::time::timeout(limit, dealer.recv())
            .await
            .map_err(|_| silent(limit, batches))?
            .map_err(socket)?;
        limit = patience.min(PAUSE);
        match frames::replay(&message) {
            Ok(ReplayFrame::Batch { seq, payload }) => {
                if !answers.batch(seq, payload).await {
                    break;
                }
            }
            Ok(ReplayFrame::End) => {
                answers.end();
                break;
            }
            Err(source) => {
                return Err(ReplayError::Frames {
                    endpoint: endpoint.clone(),
                    source,
                });
            }
        }
    }
    Ok(())
}
