//! Test endpoints: the engine's actual counters, and the injection of faults.

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    fault::InjectedFault,
    server_state::{RequestCounts, ServerState},
    stream_action::StreamAction,
};

use super::{SimApiError, SimBody, body, request};

/// `GET /sim/stats`: sums over all ranks; `last_seq` is rank 0's, and `ranks` lists each one's own.
///
/// `last_abort_ms` is the time of the last disconnect in ms since 1970, `null` before the first.
pub(crate) fn stats(state: &ServerState) -> Response<SimBody> {
    let counts = &state.counts;
    let mut sums = [0u64; 6];
    let (mut published, mut fetched, mut ranks) = (0, 0, Vec::new());
    for rank in &state.ranks {
        let stats = rank.stats();
        fetched += stats.fetched_tokens;
        let cached = stats.device_hit_tokens + stats.host_hit_tokens;
        let own = [
            stats.running as u64,
            stats.waiting as u64,
            cached,
            stats.queried_tokens,
            stats.blocks.used as u64,
            stats.blocks.cached as u64,
        ];
        for (sum, own) in sums.iter_mut().zip(own) {
            *sum += own;
        }
        let (batches, last_seq) = rank
            .publisher
            .as_ref()
            .map_or((0, None), |publisher| publisher.published());
        published += batches;
        ranks.push(json!({
            "running": own[0], "waiting": own[1], "cached_tokens": own[2], "prompt_tokens": own[3],
            "blocks_used": own[4], "blocks_cached": own[5], "published_batches": batches, "last_seq": last_seq,
        }));
    }
    let [
        running,
        waiting,
        cached_tokens,
        prompt_tokens,
        blocks_used,
        blocks_cached,
    ] = sums;
    let last_seq = ranks
        .first()
        .map_or(Value::Null, |rank| rank["last_seq"].clone());
    body::json(
        StatusCode::OK,
        &json!({
            "requests": RequestCounts::get(&counts.requests),
            "executions": RequestCounts::get(&counts.executions),
            "aborted": RequestCounts::get(&counts.aborted),
            "running": running,
            "waiting": waiting,
            "cached_tokens": cached_tokens,
            "prompt_tokens": prompt_tokens,
            "fetched_tokens": fetched,
            "blocks_used": blocks_used,
            "blocks_cached": blocks_cached,
            "published_batches": published,
            "last_seq": last_seq,
            "last_abort_ms": *counts.last_abort_ms.lock(),
            "ranks": ranks,
        }),
    )
}

#[derive(Deserialize)]
struct FaultBody {
    kind: String,
    #[serde(default = "once")]
    count: u64,
}

fn once() -> u64 {
    1
}

/// `POST /sim/fault`: the next `count` generation requests fail in this way.
pub(crate) async fn fault(state: &ServerState, request: Request<Incoming>) -> Response<SimBody> {
    let set = async {
        let body: FaultBody = request::parse(&request::read(request).await?)?;
        let fault = match body.kind.as_str() {
            "none" => None,
            kind => Some(
                kind.parse::<InjectedFault>()
                    .map_err(|error| SimApiError::bad_request(error.to_string(), "kind"))?,
            ),
        };
        state.fault.set(fault, body.count);
        Ok::<_, SimApiError>(json!({"kind": body.kind, "count": body.count}))
    };
    match set.await {
        Ok(echo) => body::json(StatusCode::OK, &echo),
        Err(error) => error.into_response(),
    }
}

#[derive(Deserialize)]
struct EventsBody {
    action: String,
    /// The rank; absent: every rank.
    rank: Option<usize>,
}

/// `POST /sim/events`: disturbs the event streams. Answers when the action is done.
pub(crate) async fn events(state: &ServerState, request: Request<Incoming>) -> Response<SimBody> {
    let act = async {
        let body: EventsBody = request::parse(&request::read(request).await?)?;
        let action: StreamAction =
            body.action
                .parse()
                .map_err(|error: crate::stream_action::StreamActionError| {
                    SimApiError::bad_request(error.to_string(), "action")
                })?;
        for (number, rank) in state.ranks.iter().enumerate() {
            if body.rank.is_none_or(|requested| requested == number) {
                rank.act(action).await;
            }
        }
        Ok::<_, SimApiError>(json!({"action": body.action}))
    };
    match act.await {
        Ok(echo) => body::json(StatusCode::OK, &echo),
        Err(error) => error.into_response(),
    }
}
