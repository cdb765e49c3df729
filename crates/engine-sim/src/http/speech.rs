//! `/v1/audio/speech`: bytes that are a function of the input, in the place of sound.

use bytes::Bytes;
use futures_util::stream;
use http::Response;
use serde::Deserialize;

use crate::server_state::{RequestCounts, ServerState};

use super::{SimApiError, SimBody, body, generate, request};

/// Bytes for each character of the input.
const BYTES_PER_CHARACTER: usize = 256;

#[derive(Deserialize)]
struct SpeechBody {
    model: Option<String>,
    input: String,
    voice: String,
}

/// Returns the speech, one chunk for each character.
pub(crate) fn speak(state: &ServerState, body: &[u8]) -> Result<Response<SimBody>, SimApiError> {
    let body: SpeechBody = request::parse(body)?;
    generate::known_model(state, body.model.as_deref())?;
    if body.voice.is_empty() {
        return Err(SimApiError::bad_request("voice is empty.", "voice"));
    }
    RequestCounts::add(&state.counts.executions);
    let chunk = |character: char| {
        let sound = (character as u32).to_le_bytes();
        Ok(Bytes::from(sound.repeat(BYTES_PER_CHARACTER / sound.len())))
    };
    let chunks: Vec<_> = body.input.chars().map(chunk).collect();
    Ok(body::chunks("audio/mpeg", stream::iter(chunks)))
}
