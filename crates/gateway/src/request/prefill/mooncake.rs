//! vLLM's Mooncake connector: both legs at once, under a transfer id that the router draws.
//!
//! The decode worker finds its prompt by that id, the address of the prefill worker's bootstrap
//! server, and the name of the engine there. An engine draws a new name at each start, so the
//! router queries the bootstrap server for it, once for each life of a worker.

use std::{collections::HashMap, num::NonZeroU16};

use bytes::Bytes;
use dialect::Edit;
use fleet::WorkerView;
use http::{HeaderValue, Request, header};
use kv_blocks::{DpRank, WorkerId};
use net::{Address, Destinations};
use parking_lot::Mutex;
use proxy::UpstreamReply;
use serde::Deserialize;
use serde_json::json;

use super::{
    super::{attempt_failure::AttemptFailure, dispatch::Dispatcher, record::RequestGuard},
    legs::{LegsOutcome, PrefillDecodeLegs, read_whole},
};

/// Default port of vLLM's bootstrap server.
const DEFAULT_PORT: NonZeroU16 = NonZeroU16::new(8998).expect("not zero");
/// Most bytes of a bootstrap server's answer: a name of some forty bytes and an address for each
/// rank.
const MAX_REPLY_BYTES: usize = 1 << 20;

/// Engine names by worker: as many entries as workers.
#[derive(Debug, Default)]
pub(crate) struct EngineIds(Mutex<HashMap<WorkerId, KnownRanks>>);

/// The names of one worker's ranks.
#[derive(Debug)]
struct KnownRanks {
    /// [`fleet::HealthView::ended`] at the time of the answer.
    ended: u64,
    by_rank: HashMap<DpRank, String>,
}

/// The bootstrap server's row for one rank.
#[derive(Deserialize)]
struct BootstrapRow {
    engine_id: String,
}

impl EngineIds {
    fn known(&self, worker: &WorkerView, rank: DpRank) -> Option<String> {
        let known = self.0.lock();
        known
            .get(&worker.id)
            .filter(|known| known.ended == worker.health.ended)?
            .by_rank
            .get(&rank)
            .cloned()
    }

    fn store(&self, worker: &WorkerView, by_rank: HashMap<DpRank, String>) {
        self.0.lock().insert(
            worker.id,
            KnownRanks {
                ended: worker.health.ended,
                by_rank,
            },
        );
    }

    /// Drops a worker's names, which may have changed.
    fn forget(&self, worker: WorkerId) {
        self.0.lock().remove(&worker);
    }
}

pub(super) async fn send(legs: &PrefillDecodeLegs<'_>, guard: &mut RequestGuard) -> LegsOutcome {
    let (prefill, decode) = match bodies(legs).await {
        Ok(bodies) => bodies,
        Err(failure) => {
            guard.fail_prefill(&failure);
            return LegsOutcome::PrefillFailed;
        }
    };
    guard.record_rewrite(vec!["kv_transfer"]);
    let sent = legs.at_once(prefill, decode, guard).await;
    if matches!(sent, LegsOutcome::PrefillFailed) {
        legs.context.engine_ids.forget(legs.prefill.worker.id);
    }
    sent
}

async fn bodies(legs: &PrefillDecodeLegs<'_>) -> Result<(Bytes, Bytes), Box<AttemptFailure>> {
    let server = Address::Tcp {
        host: legs
            .prefill
            .worker
            .connection
            .url
            .host()
            .unwrap_or_default()
            .to_owned(),
        port: legs
            .prefill
            .worker
            .bootstrap_port
            .unwrap_or(DEFAULT_PORT)
            .get(),
    };
    let engine_id = engine_id(legs, &server).await?;
    let transfer_id = format!("xfer-{:016x}", legs.ids.next_number());
    let ours =
        json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": transfer_id})
            .to_string();
    let theirs = json!({
        "do_remote_decode": false,
        "do_remote_prefill": true,
        "transfer_id": transfer_id,
        "remote_engine_id": engine_id,
        "remote_bootstrap_addr": format!("http://{server}"),
    });
    let prefill = legs.body(&[
        Edit::Set("max_tokens", "1"),
        Edit::Set("max_completion_tokens", "1"),
        Edit::Remove("min_tokens"),
        Edit::Set("stream", "false"),
        Edit::Remove("stream_options"),
        Edit::Set("kv_transfer_params", &ours),
    ])?;
    Ok((
        prefill,
        legs.body(&[Edit::Set("kv_transfer_params", &theirs.to_string())])?,
    ))
}

/// Returns the engine name of the prefill worker; queries it where unknown.
async fn engine_id(
    legs: &PrefillDecodeLegs<'_>,
    server: &Address,
) -> Result<String, Box<AttemptFailure>> {
    let (names, prefill) = (&legs.context.engine_ids, &*legs.prefill.worker);
    let rank = legs.prefill.target.rank;
    if let Some(name) = names.known(prefill, rank) {
        return Ok(name);
    }
    let left = legs.time_left() / 2;
    // The bootstrap server is on the worker's host.
    let destinations = prefill.connection.url.destinations();
    let answer = tokio::time::timeout(left, query(legs.dispatcher, server, destinations))
        .await
        .map_err(|_| AttemptFailure::timeout(left))??;
    let unusable = || {
        AttemptFailure::protocol(format!(
            "the bootstrap server at {server} did not name its engines"
        ))
    };
    let rows: HashMap<String, BootstrapRow> =
        serde_json::from_slice(&answer).map_err(|_| unusable())?;
    let named = rows
        .into_iter()
        .filter_map(|(rank, row)| Some((DpRank(rank.parse().ok()?), row.engine_id)));
    let by_rank: HashMap<DpRank, String> = named.collect();
    let name = by_rank.get(&rank).cloned().ok_or_else(unusable)?;
    names.store(prefill, by_rank);
    Ok(name)
}

/// Queries a bootstrap server for its engines.
async fn query(
    dispatcher: &Dispatcher,
    server: &Address,
    destinations: Destinations,
) -> Result<Bytes, Box<AttemptFailure>> {
    let mut request = Request::new(Bytes::new());
    *request.uri_mut() = http::Uri::from_static("/query");
    let host =
        HeaderValue::try_from(server.to_string()).unwrap_or(HeaderValue::from_static("localhost"));
    request.headers_mut().insert(header::HOST, host);
    let answer = proxy::send_once(
        server,
        destinations,
        request,
        dispatcher.limits.connect_timeout,
    )
    .await
    .map_err(AttemptFailure::from_send_failure)?;
    let UpstreamReply { head, mut body } = answer;
    if !head.status.is_success() {
        return Err(AttemptFailure::internal(head.status.as_u16()).into());
    }
    read_whole(&mut body, MAX_REPLY_BYTES).await
}
