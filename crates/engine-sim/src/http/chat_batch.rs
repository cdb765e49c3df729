//! `/v1/chat/completions/batch`: several conversations in one request, without a stream.

use serde_json::value::RawValue;

use super::{
    SimApiError,
    request::{self, GenerationBody},
};

/// Reads a batch and rejects what vLLM rejects.
pub(crate) fn read(bytes: &[u8]) -> Result<GenerationBody, SimApiError> {
    let body: GenerationBody = request::parse(bytes)?;
    let refused = [
        (body.stream == Some(true), "streaming", "stream"),
        (body.tools.is_some(), "tool use", "tools"),
        (body.n.is_some_and(|n| n != 1), "n other than 1", "n"),
    ];
    if let Some((_, what, field)) = refused.into_iter().find(|(is_set, ..)| *is_set) {
        return Err(SimApiError::bad_request(
            format!("Batch chat completions do not support {what}."),
            field,
        ));
    }
    conversations(&body)?;
    Ok(body)
}

/// Returns the conversations, each as a list of messages.
pub(crate) fn conversations(body: &GenerationBody) -> Result<Vec<Box<RawValue>>, SimApiError> {
    let refused = || {
        SimApiError::bad_request(
            "messages: expected a list of at least one conversation, each a list of messages.",
            "messages",
        )
    };
    let messages = body.messages.as_ref().ok_or_else(refused)?;
    let all: Vec<Box<RawValue>> = serde_json::from_str(messages.get()).map_err(|_| refused())?;
    if all.is_empty() || all.iter().any(|one| !one.get().starts_with('[')) {
        return Err(refused());
    }
    Ok(all)
}
