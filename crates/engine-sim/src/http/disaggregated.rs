//! `disaggregated_params`, as in TensorRT-LLM: a prompt that one engine computes (the context
//! request) and another one continues (the generation request).
//!
//! As in [`transfer`](super::transfer) no KV moves: the state in a context reply is a digest of
//! its prompt and number, and the generation engine compares it with its own prompt.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::WorkerRole;

use super::{
    error::SimApiError,
    transfer::{self, Transfer},
};

const FIELD: &str = "disaggregated_params";

/// The members of the parameters; the engine refuses others.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DisaggregatedParams {
    request_type: String,
    first_gen_tokens: Option<Vec<u32>>,
    ctx_request_id: Option<u64>,
    encoded_opaque_state: Option<String>,
    #[serde(rename = "draft_tokens")]
    _draft_tokens: Option<Vec<u32>>,
}

impl DisaggregatedParams {
    /// Returns the transfer that the request wants from an engine of this role.
    pub(crate) fn transfer(&self, role: WorkerRole) -> Result<Transfer, SimApiError> {
        match (&*self.request_type, role) {
            ("context_only", WorkerRole::Decode) => {
                Err(refused("This engine only generates: ask a context engine."))
            }
            ("generation_only", WorkerRole::Prefill) => Err(refused(
                "This engine only computes contexts: ask a generation engine.",
            )),
            ("context_only", _) => Ok(Transfer::Leaves),
            ("generation_only", _) => Ok(Transfer::Arrives),
            _ => Err(refused(
                "request_type is unknown: expected context_only or generation_only.",
            )),
        }
    }

    /// Checks that the state is that of this prompt's context request.
    pub(crate) fn check(&self, prompt: &[u32]) -> Result<(), SimApiError> {
        let expected = self.ctx_request_id.map(|id| opaque_state(prompt, id));
        let has_first = self
            .first_gen_tokens
            .as_ref()
            .is_some_and(|tokens| tokens.len() == 1);
        if has_first && expected.is_some() && self.encoded_opaque_state == expected {
            Ok(())
        } else {
            Err(refused(
                "This is not the state of this prompt's context request.",
            ))
        }
    }
}

fn refused(message: &str) -> SimApiError {
    SimApiError::bad_request(message, FIELD)
}

/// Returns the parameters in the reply of the context request with this number.
pub(crate) fn offered(prompt: &[u32], first: &[u32], id: u64) -> Value {
    json!({
        "request_type": "context_only",
        "first_gen_tokens": first,
        "ctx_request_id": id,
        "encoded_opaque_state": opaque_state(prompt, id),
        "draft_tokens": null,
    })
}

fn opaque_state(prompt: &[u32], id: u64) -> String {
    format!("{}+{id:x}==", transfer::digest(prompt))
}
