//! `/v1/score` and `/v1/rerank`: the similarity of texts, as a function of their token ids.

use std::sync::Arc;

use engine_model::ReplyStream;
use http::{HeaderMap, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::server_state::{RequestCounts, ServerState};

use super::{
    SimApiError, SimBody, body,
    chat_api::ChatApi,
    generate, prompts,
    request::{self, GenerationBody, Prompts},
};

/// Maximum number of pairs in one request; more are rejected.
const MOST_PAIRS: usize = 16_384;

#[derive(Deserialize)]
struct ScoreBody {
    model: Option<String>,
    #[serde(alias = "queries", alias = "data_1")]
    text_1: Texts,
    #[serde(alias = "documents", alias = "items", alias = "data_2")]
    text_2: Texts,
}

#[derive(Deserialize)]
struct RerankBody {
    model: Option<String>,
    query: String,
    documents: Vec<Document>,
    top_n: Option<usize>,
}

/// One text or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
enum Texts {
    One(String),
    Many(Vec<String>),
}

/// A text, or an object with one, as some clients send it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or an object with a text")]
enum Document {
    Text(String),
    Object { text: String },
}

impl Texts {
    fn list(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

/// Scores `text_1` against each of `text_2`, pairwise if both are lists.
pub(crate) async fn score(
    state: Arc<ServerState>,
    headers: HeaderMap,
    body: &[u8],
) -> Result<Response<SimBody>, SimApiError> {
    let body: ScoreBody = request::parse(body)?;
    let model = generate::known_model(&state, body.model.as_deref())?;
    let (first, second) = (body.text_1.list(), body.text_2.list());
    // A single text is paired with each of the others.
    let beside = if first.len() == 1 {
        second.len()
    } else {
        first.len()
    };
    if beside == 0 || beside != second.len() {
        let message = format!(
            "Input lengths must be either 1:1, 1:N or N:N, got {beside} and {} texts.",
            second.len()
        );
        return Err(SimApiError::bad_request(message, "text_2"));
    }
    let pairs: Vec<_> = first
        .iter()
        .cycle()
        .zip(&second)
        .map(|(one, other)| (&**one, &**other))
        .collect();
    let (scores, tokens) = scores(&state, &pairs).await?;
    let row =
        |(index, score): (usize, &f64)| json!({"index": index, "object": "score", "score": score});
    Ok(body::json(
        StatusCode::OK,
        &json!({
            "id": generate::reply_id(&state, "score", &headers),
            "object": "list",
            "created": state.clock.unix_s(),
            "model": model,
            "data": scores.iter().enumerate().map(row).collect::<Vec<_>>(),
            "usage": {
                "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": null,
            },
        }),
    ))
}

/// Returns the documents, the best match first.
pub(crate) async fn rerank(
    state: Arc<ServerState>,
    headers: HeaderMap,
    body: &[u8],
) -> Result<Response<SimBody>, SimApiError> {
    let body: RerankBody = request::parse(body)?;
    let model = generate::known_model(&state, body.model.as_deref())?;
    if body.documents.is_empty() {
        return Err(SimApiError::bad_request(
            "documents is empty: expected at least one.",
            "documents",
        ));
    }
    let documents: Vec<String> = body
        .documents
        .into_iter()
        .map(|document| match document {
            Document::Text(text) | Document::Object { text } => text,
        })
        .collect();
    let pairs: Vec<_> = documents
        .iter()
        .map(|document| (&*body.query, &**document))
        .collect();
    let (scores, tokens) = scores(&state, &pairs).await?;
    let mut ranked: Vec<_> = scores.into_iter().zip(documents).enumerate().collect();
    ranked.sort_by(|(_, (one, _)), (_, (other, _))| other.total_cmp(one));
    ranked.truncate(body.top_n.filter(|most| *most > 0).unwrap_or(usize::MAX));
    let row = |(index, (score, text)): (usize, (f64, String))| json!({"index": index, "document": {"text": text, "multi_modal": null}, "relevance_score": score});
    Ok(body::json(
        StatusCode::OK,
        &json!({
            "id": generate::reply_id(&state, "rerank", &headers),
            "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": ranked.into_iter().map(row).collect::<Vec<_>>(),
        }),
    ))
}

/// Returns a score between 0 and 1 for each pair, and the tokens of all of them.
async fn scores(
    state: &Arc<ServerState>,
    pairs: &[(&str, &str)],
) -> Result<(Vec<f64>, usize), SimApiError> {
    if pairs.len() > MOST_PAIRS {
        let message = format!(
            "{} pairs of texts are given: expected at most {MOST_PAIRS}.",
            pairs.len()
        );
        return Err(SimApiError::bad_request(message, None));
    }
    let texts = pairs
        .iter()
        .map(|(one, other)| format!("{one}\n{other}"))
        .collect();
    let input = GenerationBody {
        prompt: Some(Prompts::Texts(texts)),
        ..GenerationBody::default()
    };
    let inputs = prompts::ids(Arc::clone(state), ChatApi::Completions, input).await?;
    RequestCounts::add(&state.counts.executions);
    let score = |ids: &Arc<[u32]>| {
        let draw = ReplyStream::new(state.config.seed, ids, (0..1_025).collect()).token(0);
        // In 1024ths: exact in any notation.
        f64::from(draw) / 1_024.0
    };
    Ok((
        inputs.iter().map(score).collect(),
        inputs.iter().map(|ids| ids.len()).sum(),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_document_is_a_string_or_an_object_with_a_text() {
        let read = |value: Value| serde_json::from_value::<Document>(value).is_ok();
        assert!(read(json!("text")) && read(json!({"text": "text", "title": "t"})));
        assert!(!read(json!({"title": "t"})));
    }
}
