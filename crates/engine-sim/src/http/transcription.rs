//! `/v1/audio/transcriptions`: the length and a digest of the file in the place of its words.

use http::{HeaderMap, Response, StatusCode, header};
use serde_json::json;

use crate::server_state::{RequestCounts, ServerState};

use super::{SimApiError, SimBody, body, generate};

/// Returns what a form's file says.
pub(crate) fn transcribe(
    state: &ServerState,
    headers: &HeaderMap,
    form: &[u8],
) -> Result<Response<SimBody>, SimApiError> {
    let wrong = |message: &str| SimApiError::bad_request(message, None);
    let boundary = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once("boundary="))
        .map(|(_, boundary)| boundary.trim_matches('"'))
        .ok_or_else(|| wrong("expected a form."))?;
    let model = field(form, boundary, "model").ok_or_else(|| wrong("model is missing."))?;
    let model = String::from_utf8_lossy(model);
    generate::known_model(state, Some(&model))?;
    let file = field(form, boundary, "file").ok_or_else(|| wrong("file is missing."))?;
    RequestCounts::add(&state.counts.executions);
    let text = format!("{} bytes, digest {:016x}", file.len(), digest(file));
    Ok(body::json(StatusCode::OK, &json!({"text": text})))
}

/// Returns the content of the part with this name.
fn field<'a>(form: &'a [u8], boundary: &str, name: &str) -> Option<&'a [u8]> {
    let delimiter = format!("\r\n--{boundary}");
    let name = format!("name=\"{name}\"");
    let mut rest = form;
    loop {
        let head_end = find(rest, b"\r\n\r\n")?;
        let head = rest.get(..head_end)?;
        rest = rest.get(head_end + 4..)?;
        let end = find(rest, delimiter.as_bytes())?;
        let is_it = String::from_utf8_lossy(head)
            .split([';', '\r'])
            .any(|part| part.trim() == name);
        if is_it {
            return rest.get(..end);
        }
        rest = rest.get(end + delimiter.len()..)?;
    }
}

fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    text.windows(word.len()).position(|window| window == word)
}

/// FNV-1a.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
