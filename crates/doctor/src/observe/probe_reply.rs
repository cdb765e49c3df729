//! What an engine says of a prompt in its reply.

use serde_json::Value;

/// Content of a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProbeReply {
    pub(crate) prompt_tokens: Option<u64>,
    /// Cached tokens; `None`: usage has no details.
    pub(crate) cached_tokens: Option<u64>,
    /// The prompt's ids, from engines that return them.
    pub(crate) ids: Option<Vec<u32>>,
}

impl ProbeReply {
    pub(super) fn read(body: &Value) -> Self {
        let usage = &body["usage"];
        let choice = &body["choices"][0]["prompt_token_ids"];
        let ids = ids_in(choice).or_else(|| ids_in(&body["prompt_token_ids"]));
        Self {
            prompt_tokens: usage["prompt_tokens"].as_u64(),
            cached_tokens: fleet::probe_prompt::cached_tokens(body),
            // A prompt always has tokens.
            ids: ids.filter(|ids| !ids.is_empty()),
        }
    }
}

/// Parses a list of token ids; `None` if it is anything else.
pub(super) fn ids_in(list: &Value) -> Option<Vec<u32>> {
    list.as_array()?
        .iter()
        .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
        .collect()
}
