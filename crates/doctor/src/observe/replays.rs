//! Sends one cheap request to each replay socket: for the last batch or for none.

use std::time::Duration;

use config::Settings;
use kv_events::frames::{self, ReplayFrame};
use zmtp::{Dealer, Endpoint, Limits};

use super::{Budget, budget::NO_TIME, event_listener::EventListener};

/// Most batches read from a replay that lacks the requested one.
const ENOUGH_BATCHES: u64 = 1_000;

/// Observation of one replay socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplayObservation {
    pub(crate) rank: u32,
    pub(crate) endpoint: String,
    pub(crate) answer: ReplayAnswer,
}

/// Result of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplayAnswer {
    /// The socket answered; `found`: the requested batch, if any, came back.
    Answered { requested: Option<u64>, found: bool },
    /// The replay socket did not answer. `requested`: a batch that it must have.
    Silent {
        requested: Option<u64>,
        waited: Duration,
    },
    /// It is not a replay socket; the reason.
    Failed(String),
    /// No request was sent; the reason.
    NotSent(&'static str),
}

/// Queries the replay sockets of the streams that the router would follow.
pub(crate) async fn query(
    listeners: &[EventListener],
    settings: &Settings,
    budget: Budget,
) -> Vec<ReplayObservation> {
    let followed = listeners
        .iter()
        .filter(|listener| listener.followed && listener.connected());
    let queries = followed.filter_map(|listener| {
        let endpoint = listener.endpoint.replay_endpoint.clone()?;
        let last = listener.observation.borrow().numbers.last;
        let rank = listener.endpoint.rank;
        Some(async move {
            let answer = if budget.is_spent() {
                ReplayAnswer::NotSent(NO_TIME)
            } else {
                let limit = budget.at_most(budget.request);
                let limits = Limits {
                    destinations: listener.destinations.clone(),
                    max_message: settings.kv_events.max_message,
                    handshake_timeout: limit,
                    ..Limits::default()
                };
                one(&endpoint, last, limits, limit).await
            };
            ReplayObservation {
                rank,
                endpoint,
                answer,
            }
        })
    });
    futures_util::future::join_all(queries).await
}

async fn one(endpoint: &str, last: Option<u64>, limits: Limits, limit: Duration) -> ReplayAnswer {
    let endpoint: Endpoint = match endpoint.parse() {
        Ok(endpoint) => endpoint,
        Err(error) => return ReplayAnswer::Failed(format!("{error}")),
    };
    let dealer = match Dealer::connect(&endpoint, limits, limit).await {
        Ok(dealer) => dealer,
        Err(error) => return ReplayAnswer::Failed(error.to_string()),
    };
    let silent = ReplayAnswer::Silent {
        requested: last,
        waited: limit,
    };
    tokio::time::timeout(limit, exchange(dealer, last))
        .await
        .unwrap_or(silent)
}

async fn exchange(mut dealer: Dealer, last: Option<u64>) -> ReplayAnswer {
    // Beyond every number in use: then only the end marker comes.
    let from = last.unwrap_or(u64::MAX - 1);
    if let Err(error) = dealer.send(&frames::replay_request(from)).await {
        return ReplayAnswer::Failed(error.to_string());
    }
    for _ in 0..ENOUGH_BATCHES {
        let message = match dealer.recv().await {
            Ok(message) => message,
            Err(error) => return ReplayAnswer::Failed(error.to_string()),
        };
        match frames::replay(&message) {
            // Does not wait for the end marker: some publishers leave it out.
            Ok(ReplayFrame::Batch { seq, .. }) if Some(seq) == last => {
                return ReplayAnswer::Answered {
                    requested: last,
                    found: true,
                };
            }
            Ok(ReplayFrame::Batch { .. }) => {}
            Ok(ReplayFrame::End) => break,
            Err(error) => return ReplayAnswer::Failed(error.to_string()),
        }
    }
    ReplayAnswer::Answered {
        requested: last,
        found: false,
    }
}
