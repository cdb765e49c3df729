//! `kv_transfer_params`, as vLLM's NIXL connector has them: a prompt's KV leaves one engine and arrives at another.
//!
//! Nothing is fetched here. A prefill's reply carries a digest of its prompt beside the usual members, and an engine that
//! is given them holds them against its own prompt: whoever garbles them, or mixes two requests up, is told so.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::WorkerRole;

use super::error::SimApiError;

/// The port of the side channel where nobody set another one.
const SIDE_CHANNEL_PORT: u16 = 5600;
const FIELD: &str = "kv_transfer_params";

/// The members that matter here; engines of other kinds have more.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TransferParams {
    do_remote_decode: bool,
    do_remote_prefill: bool,
    remote_engine_id: Option<String>,
    remote_block_ids: Option<Vec<u64>>,
    remote_host: Option<String>,
    remote_port: Option<u16>,
    sim_prompt: Option<String>,
}

/// What becomes of a prompt's KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// It stays.
    #[default]
    None,
    /// It is computed here for another engine.
    Leaves,
    /// Another engine computed it.
    Arrives,
}

impl TransferParams {
    /// What is asked of an engine of this role.
    pub(crate) fn transfer(&self, role: WorkerRole) -> Result<Transfer, SimApiError> {
        let refused = |message: &str| Err(SimApiError::bad_request(message, FIELD));
        match (self.do_remote_decode, self.do_remote_prefill) {
            (true, true) => refused("A prompt cannot be computed both here and elsewhere."),
            (true, false) if role == WorkerRole::Decode => {
                refused("This engine only decodes: ask a prefill engine.")
            }
            (false, true) if role == WorkerRole::Prefill => {
                refused("This engine only prefills: ask a decode engine.")
            }
            (true, false) => Ok(Transfer::Leaves),
            (false, true) => Ok(Transfer::Arrives),
            (false, false) => Ok(Transfer::None),
        }
    }

    /// Whether they are those of this prompt.
    pub(crate) fn check(&self, prompt: &[u32], block_tokens: u32) -> Result<(), SimApiError> {
        let blocks = prompt.len().div_ceil(block_tokens as usize);
        let whole = self.remote_engine_id.is_some()
            && self.remote_host.is_some()
            && self.remote_port.is_some()
            && self
                .remote_block_ids
                .as_ref()
                .is_some_and(|ids| ids.len() == blocks)
            && self.sim_prompt.as_deref() == Some(&*digest(prompt));
        if whole {
            Ok(())
        } else {
            Err(SimApiError::bad_request(
                "These are not the blocks of this prompt.",
                FIELD,
            ))
        }
    }
}

/// What a prefill's reply says of `prompt`.
pub(crate) fn offered(prompt: &[u32], block_tokens: u32, engine_id: &str) -> Value {
    json!({
        "do_remote_prefill": true,
        "do_remote_decode": false,
        "remote_block_ids": (1..=prompt.len().div_ceil(block_tokens as usize)).collect::<Vec<_>>(),
        "remote_engine_id": engine_id,
        "remote_host": "127.0.0.1",
        "remote_port": SIDE_CHANNEL_PORT,
        "tp_size": 1,
        "sim_prompt": digest(prompt),
    })
}

fn digest(prompt: &[u32]) -> String {
    // The same in every process: nothing of it is random.
    let mut hasher = DefaultHasher::new();
    prompt.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
