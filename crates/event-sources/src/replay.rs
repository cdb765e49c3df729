//! One request to a publisher's replay socket.

use std::time::Duration;

use kv_events::frames::{self, FrameError, Replay};
use tokio::{sync::mpsc, task::JoinHandle};
use zmtp::{Dealer, Disconnect, Endpoint, Limits};

/// What comes of a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Batch { seq: u64, payload: Vec<u8> },
    End,
    Failed(ReplayError),
}

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error("replay endpoint {endpoint}: {source}")]
    Socket { endpoint: Endpoint, source: Disconnect },
    #[error("replay endpoint {endpoint} was silent for {limit:?}: check that it is the engine's replay_endpoint")]
    Silent { endpoint: Endpoint, limit: Duration },
    #[error("replay endpoint {endpoint}: {source}")]
    Frames { endpoint: Endpoint, source: FrameError },
}

/// A running request. Dropping it ends it and closes its connection.
#[derive(Debug)]
pub(crate) struct ReplayRun {
    answers: mpsc::Receiver<Answer>,
    task: JoinHandle<()>,
}

impl ReplayRun {
    /// Asks for everything from `from` on. `patience` is the longest silence, connecting included.
    pub(crate) fn start(endpoint: Endpoint, from: u64, limits: Limits, patience: Duration) -> Self {
        // When full, the task waits with reading, and TCP holds the publisher back.
        let (sender, answers) = mpsc::channel(16);
        let task = tokio::spawn(async move {
            if let Err(error) = ask(&endpoint, from, limits, patience, &sender).await {
                let _ = sender.send(Answer::Failed(error)).await;
            }
        });
        Self { answers, task }
    }

    /// The next answer; after the end or a failure there is none. May be cancelled without losing anything.
    pub(crate) async fn next(&mut self) -> Option<Answer> {
        self.answers.recv().await
    }
}

impl Drop for ReplayRun {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn ask(
    endpoint: &Endpoint,
    from: u64,
    limits: Limits,
    patience: Duration,
    answers: &mpsc::Sender<Answer>,
) -> Result<(), ReplayError> {
    let socket = |source| ReplayError::Socket { endpoint: endpoint.clone(), source };
    let mut dealer = Dealer::connect(endpoint, limits, patience).await.map_err(socket)?;
    dealer.send(&frames::replay_request(from)).await.map_err(socket)?;
    loop {
        let message = tokio::time::timeout(patience, dealer.recv())
            .await
            .map_err(|_| ReplayError::Silent { endpoint: endpoint.clone(), limit: patience })?
            .map_err(socket)?;
        let answer = match frames::replay(&message) {
            Ok(Replay::Batch { seq, payload }) => Answer::Batch { seq, payload: payload.to_vec() },
            Ok(Replay::End) => Answer::End,
            Err(source) => return Err(ReplayError::Frames { endpoint: endpoint.clone(), source }),
        };
        let end = matches!(answer, Answer::End);
        if answers.send(answer).await.is_err() || end {
            return Ok(());
        }
    }
}
