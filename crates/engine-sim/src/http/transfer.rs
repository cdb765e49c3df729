//! `kv_transfer_params`, as in vLLM's NIXL connector: the transfer of a prompt's KV from one engine
//! to another.
//!
//! No KV is transferred here. A prefill's reply carries a digest of its prompt beside the usual
//! members, and the receiving engine compares it with its own prompt: garbled members, or a mix-up
//! of two requests, cause an error.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::WorkerRole;

use super::error::SimApiError;

/// Default port of the side channel.
const SIDE_CHANNEL_PORT: u16 = 5600;
const FIELD: &str = "kv_transfer_params";

/// The members that are read here; engines of other kinds have more.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TransferParams {
    do_remote_decode: bool,
    do_remote_prefill: bool,
    remote_engine_id: Option<String>,
    remote_block_ids: Option<Vec<u64>>,
    remote_host: Option<String>,
    remote_port: Option<u16>,
    remote_kv_source: Option<KvSource>,
    sim_prompt: Option<String>,
}

/// An engine that holds leading blocks of the prompt, as vLLM's P2P tier reads it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct KvSource {
    #[serde(rename = "kv_request_id")]
    _kv_request_id: String,
    pub(crate) remote_host: String,
    pub(crate) remote_port: u16,
}

/// The transfer of a prompt's KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// No transfer.
    #[default]
    None,
    /// This engine computes it for another engine.
    Leaves,
    /// Another engine computed it.
    Arrives,
}

impl TransferParams {
    /// Returns the engine that the request names as a source of blocks.
    pub(crate) fn source(&self) -> Option<&KvSource> {
        self.remote_kv_source.as_ref()
    }

    /// Returns the transfer that the request wants from an engine of this role.
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

    /// Checks that the parameters belong to this prompt.
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

/// Returns the parameters in a prefill's reply for `prompt`.
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

/// Returns a digest of a prompt.
pub(super) fn digest(prompt: &[u32]) -> String {
    // Equal in every process: no part of it is random.
    let mut hasher = DefaultHasher::new();
    prompt.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
