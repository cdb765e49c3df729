//! Request bodies with the fields that a simulated engine uses.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use kv_blocks::PromptMedia;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use super::{disaggregated::DisaggregatedParams, error::SimApiError, transfer::TransferParams};

/// Maximum length of a body; a longer one is rejected.
const MOST_BYTES: usize = 64 << 20;

/// A chat or completion request; unlisted fields are ignored, as are sampling parameters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GenerationBody {
    pub(crate) model: Option<String>,
    pub(crate) messages: Option<Box<RawValue>>,
    pub(crate) prompt: Option<Prompts>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) max_completion_tokens: Option<u32>,
    pub(crate) n: Option<u32>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) return_token_ids: Option<bool>,
    /// The prompt as another engine tokenised it.
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    pub(crate) kv_transfer_params: Option<TransferParams>,
    pub(crate) disaggregated_params: Option<DisaggregatedParams>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) priority: Option<i64>,
    pub(crate) add_generation_prompt: Option<bool>,
    pub(crate) continue_final_message: Option<bool>,
    pub(crate) add_special_tokens: Option<bool>,
    pub(crate) tools: Option<Box<RawValue>>,
    pub(crate) documents: Option<Box<RawValue>>,
    pub(crate) chat_template: Option<Box<RawValue>>,
    pub(crate) chat_template_kwargs: Option<Box<RawValue>>,
    pub(crate) reasoning_effort: Option<Box<RawValue>>,
    pub(crate) tool_choice: Option<Value>,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) response_format: Option<Value>,
    pub(crate) structured_outputs: Option<Value>,
    pub(crate) guided_json: Option<Value>,
    pub(crate) guided_choice: Option<Value>,
    pub(crate) stop: Option<Value>,
    pub(crate) include_stop_str_in_output: Option<bool>,
    pub(crate) logprobs: Option<Value>,
    pub(crate) top_logprobs: Option<Value>,
    /// `/tokenize` only.
    pub(crate) return_token_strs: Option<bool>,
    /// `/v1/chat/completions/render` only.
    pub(crate) return_mm_kwargs: Option<bool>,
    /// The media items of the placeholders in a prompt of token ids.
    #[serde(skip)]
    pub(crate) media: PromptMedia,
}

/// Options of a stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
}

/// One prompt or several, as text or as token ids.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a string, a list of strings, a list of token ids or a list of such lists"
)]
pub(crate) enum Prompts {
    /// One text.
    Text(String),
    /// One list of ids.
    Ids(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of ids.
    IdLists(Vec<Vec<u32>>),
}

/// Reads the whole body, within bounds.
pub(crate) async fn read(request: Request<Incoming>) -> Result<Bytes, SimApiError> {
    match Limited::new(request.into_body(), MOST_BYTES)
        .collect()
        .await
    {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(SimApiError::body_too_large(MOST_BYTES))
        }
        Err(error) => Err(SimApiError::bad_request(
            format!("The request body did not arrive: {error}."),
            None,
        )),
    }
}

/// Parses the body as JSON of the expected form.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, SimApiError> {
    serde_json::from_slice(body).map_err(|error| {
        SimApiError::bad_request(format!("The request body is wrong: {error}."), None)
    })
}

/// Returns the chat request with these members; `null` counts as absent.
pub(crate) fn chat(
    members: impl IntoIterator<Item = (&'static str, Value)>,
) -> Result<GenerationBody, SimApiError> {
    let there = members.into_iter().filter(|(_, value)| !value.is_null());
    let chat: Value = there
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    parse(chat.to_string().as_bytes())
}

/// Returns a list of tools, each in the chat's form; `null` if there are none.
pub(crate) fn tools(
    tools: &Value,
    tool: impl Fn(&Value) -> Result<Value, SimApiError>,
) -> Result<Value, SimApiError> {
    let tools: Vec<Value> = tools
        .as_array()
        .into_iter()
        .flatten()
        .map(tool)
        .collect::<Result<_, _>>()?;
    Ok(if tools.is_empty() {
        Value::Null
    } else {
        tools.into()
    })
}
