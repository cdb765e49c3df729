//! `/v1/embeddings`: vectors that are a function of the input's token ids.

use std::sync::Arc;

use engine_model::ReplyStream;
use http::{HeaderMap, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::server_state::{RequestCounts, ServerState};

use super::{
    SimApiError, SimBody, body,
    chat_api::ChatApi,
    generate, prompts,
    request::{self, GenerationBody, Prompts},
};

/// Default dimensions of a vector.
const DIMENSIONS: u32 = 64;
const MOST_DIMENSIONS: u32 = 4_096;

#[derive(Deserialize)]
struct EmbeddingBody {
    model: Option<String>,
    input: Prompts,
    dimensions: Option<u32>,
    encoding_format: Option<String>,
}

/// Returns one vector for each input.
pub(crate) async fn embed(
    state: Arc<ServerState>,
    headers: HeaderMap,
    body: &[u8],
) -> Result<Response<SimBody>, SimApiError> {
    let body: EmbeddingBody = request::parse(body)?;
    let model = generate::known_model(&state, body.model.as_deref())?;
    let dimensions = body.dimensions.unwrap_or(DIMENSIONS);
    if !(1..=MOST_DIMENSIONS).contains(&dimensions) {
        return Err(SimApiError::bad_request(
            format!("dimensions is {dimensions}: expected 1 to {MOST_DIMENSIONS}."),
            "dimensions",
        ));
    }
    let base64 = match body.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            return Err(SimApiError::bad_request(
                format!("encoding_format is {other:?}: expected float or base64."),
                "encoding_format",
            ));
        }
    };
    let input = GenerationBody {
        prompt: Some(body.input),
        ..GenerationBody::default()
    };
    let inputs = prompts::ids(Arc::clone(&state), ChatApi::Completions, input).await?;
    RequestCounts::add(&state.counts.executions);
    let tokens: usize = inputs.iter().map(|ids| ids.len()).sum();
    let data: Vec<Value> = inputs
        .iter()
        .enumerate()
        .map(|(index, ids)| {
            let vector = vector(state.config.seed, ids, dimensions);
            let embedding = if base64 {
                json!(encoded(&vector))
            } else {
                json!(vector)
            };
            json!({"index": index, "object": "embedding", "embedding": embedding})
        })
        .collect();
    Ok(body::json(
        StatusCode::OK,
        &json!({
            "id": generate::reply_id(&state, "embd", &headers),
            "object": "list",
            "created": state.clock.unix_s(),
            "model": model,
            "data": data,
            "usage": {
                "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }),
    ))
}

/// Returns a vector of length one.
fn vector(seed: u64, ids: &[u32], dimensions: u32) -> Vec<f32> {
    let steps = ReplyStream::new(seed, ids, (0..2_001).collect());
    let raw: Vec<f64> = (0..dimensions)
        .map(|index| f64::from(steps.token(index)) - 1_000.0)
        .collect();
    let length = raw
        .iter()
        .map(|value| value * value)
        .sum::<f64>()
        .sqrt()
        .max(1.0);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "embeddings are single precision"
    )]
    raw.iter().map(|value| (value / length) as f32).collect()
}

fn encoded(vector: &[f32]) -> String {
    use base64::Engine;
    let bytes: Vec<u8> = vector
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
