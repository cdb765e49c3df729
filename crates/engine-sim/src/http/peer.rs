//! `kv_transfer_params.remote_kv_source`, as in vLLM's P2P tier: blocks that another engine holds are
//! read instead of computed.
//!
//! No KV is transferred. The other engine is asked which of the blocks it holds, on the port of its
//! API; they are here after the time of the transfer. An engine that cannot be asked, or holds none,
//! costs that question and the floor of a transfer: the blocks are computed.

use std::{sync::Arc, time::Duration};

use engine_model::{FetchedPrefix, Finish, GenerationRequest, RequestId};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use kv_blocks::{EngineHash, PromptMedia};
use net::{WorkerUrl, fetch};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::server_state::ServerState;

use super::{SimApiError, SimBody, body, request, transfer::KvSource};

/// Time limit of the question to another engine, and most bytes of its answer.
const PATIENCE: Duration = Duration::from_secs(2);
const MOST_ANSWER_BYTES: usize = 4096;

/// What the names of a prompt's blocks depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedPrompt<'a> {
    pub(super) ids: &'a Arc<[u32]>,
    pub(super) media: &'a PromptMedia,
    pub(super) lora: Option<&'a Arc<str>>,
    pub(super) salt: Option<&'a Arc<str>>,
}

/// The names of a prompt's blocks.
#[derive(Serialize, Deserialize)]
struct HeldQuery {
    names: Vec<u64>,
}

/// The number of leading blocks of them that are cached.
#[derive(Deserialize)]
struct HeldAnswer {
    blocks: u32,
}

/// Returns the blocks that the source of a request sends; `None`: it has none, or this engine reads
/// from no other.
pub(super) async fn fetched(
    state: &ServerState,
    source: Option<&KvSource>,
    prompt: CachedPrompt<'_>,
) -> Option<FetchedPrefix> {
    let (source, timing) = (source?, state.config.batch.p2p?);
    let names = names(state, prompt);
    let sent = held_by(source, &names).await.unwrap_or(0);
    let own = held_here(state, &names);
    let block_tokens = state.config.cache.block_size.tokens();
    let more = u64::from(sent).saturating_sub(own as u64);
    Some(FetchedPrefix {
        tokens: sent.saturating_mul(block_tokens),
        time: timing.time(more * u64::from(block_tokens)),
    })
}

/// `POST /sim/held`: how many of these leading blocks of a prompt any rank holds.
pub(super) async fn held(state: &ServerState, request: Request<Incoming>) -> Response<SimBody> {
    let counted = async {
        let query: HeldQuery = request::parse(&request::read(request).await?)?;
        let names: Vec<EngineHash> = query.names.into_iter().map(EngineHash).collect();
        Ok::<_, SimApiError>(json!({"blocks": held_here(state, &names)}))
    };
    match counted.await {
        Ok(answer) => body::json(StatusCode::OK, &answer),
        Err(error) => error.into_response(),
    }
}

fn held_here(state: &ServerState, names: &[EngineHash]) -> usize {
    let held = state.ranks.iter().map(|rank| rank.held_blocks(names));
    held.max().unwrap_or(0)
}

/// Returns the names of a prompt's blocks, which are the same in all simulated engines.
fn names(state: &ServerState, prompt: CachedPrompt<'_>) -> Vec<EngineHash> {
    let honours_salts = state.config.cache.honours_salts;
    let request = GenerationRequest {
        id: RequestId(0),
        prompt: Arc::clone(prompt.ids),
        media: prompt.media.clone(),
        output_tokens: 1,
        finish: Finish::Length,
        script: None,
        lora: prompt.lora.map(Arc::clone),
        salt: prompt.salt.filter(|_| honours_salts).map(Arc::clone),
        transferred: false,
        fetch: None,
        priority: 0,
    };
    let rank = state.ranks.first();
    rank.map_or_else(Vec::new, |rank| rank.prompt_names(&request))
}

/// Asks another engine; `None`: it gives no answer.
async fn held_by(source: &KvSource, names: &[EngineHash]) -> Option<u32> {
    let host = if source.remote_host.contains(':') {
        format!("[{}]", source.remote_host)
    } else {
        source.remote_host.clone()
    };
    let url: WorkerUrl = format!("http://{host}:{}", source.remote_port)
        .parse()
        .ok()?;
    let query = HeldQuery {
        names: names.iter().map(|name| name.0).collect(),
    };
    let query = serde_json::to_vec(&query).ok()?;
    let headers = HeaderMap::new();
    let asked = fetch::post(
        &url,
        "/sim/held",
        &headers,
        Some(query.into()),
        PATIENCE,
        MOST_ANSWER_BYTES,
    );
    let reply = asked.await.ok()?;
    let answer: HeldAnswer = serde_json::from_slice(&reply.body).ok()?;
    reply.status.is_success().then_some(answer.blocks)
}
