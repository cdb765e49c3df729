//! One question to each replay socket: a cheap one, for the last batch or for none.

use std::time::Duration;

use config::Settings;
use kv_events::frames::{self, ReplayFrame};
use zmtp::{Dealer, Endpoint, Limits};

use super::{Budget, NO_TIME, event_listener::EventListener};

/// Batches read before a replay without the one that was asked for has answered enough.
const ENOUGH_BATCHES: u64 = 1_000;

/// One replay socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplayObservation {
    pub(crate) rank: u32,
    pub(crate) endpoint: String,
    pub(crate) answer: ReplayAnswer,
}

/// What came of the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplayAnswer {
    /// It was answered; `found`: the batch asked for, if one was, came back.
    Answered { asked_for: Option<u64>, found: bool },
    /// A replay socket, and no word from it. `asked_for`: the batch that it must have had.
    Silent {
        asked_for: Option<u64>,
        waited: Duration,
    },
    /// It is none.
    Failed(String),
    /// It was not asked, and why.
    NotAsked(&'static str),
}

/// Asks the replay sockets of the streams that the router would follow.
pub(crate) async fn query(
    ears: &[EventListener],
    settings: &Settings,
    budget: Budget,
) -> Vec<ReplayObservation> {
    let followed = ears.iter().filter(|ear| ear.followed && ear.connected());
    let asks = followed.filter_map(|ear| {
        let endpoint = ear.endpoint.replay_endpoint.clone()?;
        let last = ear.heard.borrow().last_seq;
        let rank = ear.endpoint.rank;
        Some(async move {
            let answer = if budget.is_spent() {
                ReplayAnswer::NotAsked(NO_TIME)
            } else {
                one(
                    &endpoint,
                    last,
                    settings.kv_events.max_message,
                    budget.at_most(budget.request),
                )
                .await
            };
            ReplayObservation {
                rank,
                endpoint,
                answer,
            }
        })
    });
    futures_util::future::join_all(asks).await
}

async fn one(
    endpoint: &str,
    last: Option<u64>,
    max_message: usize,
    limit: Duration,
) -> ReplayAnswer {
    let endpoint: Endpoint = match endpoint.parse() {
        Ok(endpoint) => endpoint,
        Err(error) => return ReplayAnswer::Failed(format!("{error}")),
    };
    let limits = Limits {
        max_message,
        handshake_timeout: limit,
        ..Limits::default()
    };
    let dealer = match Dealer::connect(&endpoint, limits, limit).await {
        Ok(dealer) => dealer,
        Err(error) => return ReplayAnswer::Failed(error.to_string()),
    };
    let silent = ReplayAnswer::Silent {
        asked_for: last,
        waited: limit,
    };
    tokio::time::timeout(limit, exchange(dealer, last))
        .await
        .unwrap_or(silent)
}

async fn exchange(mut dealer: Dealer, last: Option<u64>) -> ReplayAnswer {
    // Beyond every number that was ever used: then only the end marker comes.
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
            // The end marker is not waited for: some publishers leave it out.
            Ok(ReplayFrame::Batch { seq, .. }) if Some(seq) == last => {
                return ReplayAnswer::Answered {
                    asked_for: last,
                    found: true,
                };
            }
            Ok(ReplayFrame::Batch { .. }) => {}
            Ok(ReplayFrame::End) => break,
            Err(error) => return ReplayAnswer::Failed(error.to_string()),
        }
    }
    ReplayAnswer::Answered {
        asked_for: last,
        found: false,
    }
}
