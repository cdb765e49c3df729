//! What the engine answers besides completions, and the bytes of completions.

use anyhow::Result;
use memchr::memmem;

use crate::{EngineState, MAX_DELAY_US};

const MODELS: &str = r#"{"object":"list","data":[{"id":"fake","object":"model","created":1700000000,"owned_by":"vllm","root":"fake","max_model_len":1048576}]}"#;
const MODEL_INFO: &str = r#"{"model_path":"fake","tokenizer_path":"fake","is_generation":true,"served_model_name":"fake"}"#;
const SERVER_INFO: &str = r#"{"model_path":"fake","served_model_name":"fake","model_id":"fake","tp_size":1,"dp_size":1,"version":"0.0"}"#;
const LOAD: &str = r#"[{"dp_rank":0,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":0}]"#;
const METRICS: &str = "vllm:num_requests_running{model_name=\"fake\"} 0\n\
    vllm:num_requests_waiting{model_name=\"fake\"} 0\n\
    vllm:kv_cache_usage_perc{model_name=\"fake\"} 0\n";

pub(crate) const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
    cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
pub(crate) const STREAM_END: &[u8] = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

/// What a completion's body asks for. It is searched, not parsed: the engine shall cost next to nothing.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    pub(crate) tokens: u64,
    pub(crate) streamed: bool,
}

impl CompletionRequest {
    pub(crate) fn of(body: &[u8]) -> Self {
        // A router may send either name.
        let tokens = number_after(body, b"\"max_tokens\":")
            .or_else(|| number_after(body, b"\"max_completion_tokens\":"));
        Self {
            tokens: tokens.unwrap_or(1),
            streamed: memmem::find(body, b"\"stream\":true").is_some(),
        }
    }
}

fn number_after(body: &[u8], name: &[u8]) -> Option<u64> {
    let start = memmem::find(body, name)? + name.len();
    let digits = body[start..].trim_ascii_start();
    let end = digits
        .iter()
        .take(20)
        .take_while(|b| b.is_ascii_digit())
        .count();
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// One event of a stream, as a chunk.
pub(crate) fn event(content: &str, finish_reason: &str) -> Vec<u8> {
    let data = format!(
        "data: {{\"id\":\"fake-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"fake\",\
         \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}},\"logprobs\":null,\
         \"finish_reason\":{finish_reason}}}]}}\n\n"
    );
    format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
}

/// The reply to a completion that is not streamed.
pub(crate) fn completion(tokens: u64) -> Vec<u8> {
    let total = tokens.saturating_add(8);
    json(&format!(
        "{{\"id\":\"fake-1\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"fake\",\
         \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"x\"}},\"logprobs\":null,\
         \"finish_reason\":\"stop\"}}],\
         \"usage\":{{\"prompt_tokens\":8,\"completion_tokens\":{tokens},\"total_tokens\":{total}}}}}"
    ))
}

/// Returns the reply to a request that is not a completion.
pub(crate) fn other(state: &EngineState, path: &str, body: &[u8]) -> Vec<u8> {
    let (route, query) = path.split_once('?').unwrap_or((path, ""));
    match route {
        "/control" => match control(state, query) {
            Ok(reply) => json(&reply),
            Err(error) => full("400 Bad Request", "text/plain", &format!("{error:#}")),
        },
        "/tokenize" => tokenize(body),
        "/health" | "/health_generate" | "/ping" | "/readiness" | "/liveness" => {
            full("200 OK", "text/plain", "")
        }
        "/v1/models" => json(MODELS),
        "/get_model_info" | "/model_info" => json(MODEL_INFO),
        "/server_info" | "/get_server_info" => json(SERVER_INFO),
        "/version" => json(r#"{"version":"0.11.0"}"#),
        "/get_load" => json(LOAD),
        "/metrics" => full("200 OK", "text/plain", METRICS),
        _ => full("404 Not Found", "text/plain", "no"),
    }
}

/// Sets the delay, if the query has one, and returns the requests by port, which count from 0 again.
fn control(state: &EngineState, query: &str) -> Result<String> {
    if let Some(delay) = query.strip_prefix("delay_us=") {
        let delay: u64 = delay.parse()?;
        anyhow::ensure!(
            delay <= MAX_DELAY_US,
            "delay_us is {delay}: at most {MAX_DELAY_US}"
        );
        state.delay_us.set(delay);
    }
    let requests: Vec<u64> = state.requests.iter().map(|count| count.take()).collect();
    Ok(format!("{{\"requests\":{requests:?}}}"))
}

/// Answers in vLLM's form, with one token for each 4 bytes, so that equal beginnings have equal
/// tokens.
fn tokenize(body: &[u8]) -> Vec<u8> {
    let start = memmem::find(body, b"\"content\"").or_else(|| memmem::find(body, b"\"prompt\""));
    let ids: Vec<u32> = body[start.unwrap_or(0)..].chunks(4).map(token).collect();
    json(&format!(
        "{{\"count\":{},\"max_model_len\":1048576,\"tokens\":{ids:?},\"token_strs\":null}}",
        ids.len()
    ))
}

fn token(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(7_u32, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(u32::from(*byte))
    });
    hash % 32_000
}

fn json(body: &str) -> Vec<u8> {
    full("200 OK", "application/json", body)
}

fn full(status: &str, content_type: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_how_many_tokens_it_wants_by_either_name() {
        let tokens = |body: &str| CompletionRequest::of(body.as_bytes()).tokens;
        assert_eq!(tokens(r#"{"max_tokens":200}"#), 200);
        assert_eq!(tokens(r#"{"max_completion_tokens": 7,"stream":true}"#), 7);
        assert_eq!(tokens("{}"), 1);
    }

    #[test]
    fn an_event_is_one_whole_chunk() {
        let event = String::from_utf8(event(" tok", "null")).unwrap();
        let (size, rest) = event.split_once("\r\n").unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        assert_eq!(rest.len(), size + 2);
        assert!(rest.ends_with("}\n\n\r\n"));
    }
}
