//! The body of `/v1/route`: the request as it would be sent to a worker, and the caller's options
//! for the decision.
//!
//! The prompt is read by the same view as in forwarded requests; this module reads only the fields
//! that no engine has. A field of a wrong form is refused here, unlike in a forwarded request,
//! since no engine would report it.

use std::{collections::HashMap, sync::Arc};

use dialect::{ApiError, Dialect, ErrorCode, PromptPart, RawJson, RequestBody, RequestView};
use routing::Policy;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{
    ids,
    request::overrides::{HeaderOverrides, OVERLAP_WEIGHT, TEMPERATURE, printable},
};

/// A body of `/v1/route`.
#[derive(Debug)]
pub(super) struct RouteBody<'a> {
    /// The request.
    pub(super) view: RequestView<'a>,
    /// The dialect of the request.
    pub(super) dialect: Dialect,
    /// If set, reserves the target under this id.
    pub(super) request_id: Option<Arc<str>>,
    /// Expected length of the reply, tokens.
    pub(super) expected_output_tokens: Option<u32>,
    /// Overrides from the headers; the body's take precedence.
    pub(super) overrides: HeaderOverrides,
    /// The field or header that names the worker.
    pub(super) worker_param: &'static str,
    /// Names of workers that are excluded.
    pub(super) exclude: Vec<String>,
}

/// Reads a body. A header applies where the body lacks the field.
pub(super) fn read<'a>(
    body: &'a [u8],
    headers: &HeaderOverrides,
) -> Result<RouteBody<'a>, ApiError> {
    let mut fields = RouteFields::default();
    let mut request = RequestBody::read(body, |name, value| fields.add(name, value))?;
    let dialect = if fields.messages {
        Dialect::Chat
    } else {
        Dialect::Completions
    };
    let mut view = request.view(dialect)?;
    if let Some(twice) = fields.twice {
        let message = format!("the key {twice:?} stands in the body twice; send it once");
        return Err(ApiError::new(ErrorCode::DuplicateKey, message).param(twice));
    }
    let token_ids = fields.read(
        "token_ids",
        "a list of one or more token ids, whole numbers below 2^32",
        |ids: &Vec<u32>| !ids.is_empty(),
    )?;
    if [fields.messages, fields.prompt, token_ids.is_some()]
        .into_iter()
        .filter(|there| *there)
        .count()
        != 1
    {
        let message = "the body must have exactly one of messages, prompt and token_ids";
        return Err(ApiError::new(ErrorCode::InvalidRequest, message).param("messages"));
    }
    if let Some(ids) = token_ids {
        view.prompt = PromptPart::TokenIds(ids);
        if fields.features {
            let with_media = request.view(Dialect::TokenIds)?;
            (view.prompt, view.fidelity) = (with_media.prompt, with_media.fidelity);
        }
    } else {
        check_form(&view.prompt)?;
    }
    let mut overrides = headers.clone();
    let any = |_: &String| true;
    let worker = fields.read("worker", "the name of a worker, or name/rank", any)?;
    let worker_param = if worker.is_some() {
        "worker"
    } else {
        "x-warmroute-worker"
    };
    if let Some(name) = worker {
        overrides.worker = Some(name.into());
    }
    if let Some(name) = fields.read("policy", "the name of a policy", any)? {
        let unknown = |error: routing::UnknownPolicy| {
            ApiError::new(ErrorCode::UnknownPolicy, error.to_string()).param("policy")
        };
        overrides.policy = Some(name.parse::<Policy>().map_err(unknown)?);
    }
    if let Some(value) = fields.take(ROUTER_CONFIG) {
        router_config(value, &mut overrides)?;
    }
    Ok(RouteBody {
        dialect,
        request_id: fields.read(
            "request_id",
            "1 to 128 visible ascii characters",
            |id: &Arc<str>| ids::is_usable(id.as_bytes()),
        )?,
        expected_output_tokens: fields
            .read(
                "expected_output_tokens",
                "a whole number of tokens from 1 to 4294967295",
                |tokens: &u32| *tokens > 0,
            )?
            .or(view.max_tokens),
        exclude: fields
            .read("exclude", "a list of names of workers", |_| true)?
            .unwrap_or_default(),
        view,
        overrides,
        worker_param,
    })
}

/// The fields of [`api::RouteRequest`] that this module reads; `null` counts as absent. They are
/// read one by one, since the other fields are an engine's and the first wrong one is named.
const OWN: [&str; 7] = [
    "token_ids",
    "request_id",
    "expected_output_tokens",
    "policy",
    "worker",
    "exclude",
    ROUTER_CONFIG,
];

/// The field that overrides settings of the router, and its possible keys.
const ROUTER_CONFIG: &str = "router_config_override";
const ROUTER_CONFIG_FORM: &str = "an object with overlap_score_weight, router_temperature or both";

#[derive(Default)]
struct RouteFields<'a> {
    own: HashMap<&'static str, RawJson<'a>>,
    messages: bool,
    prompt: bool,
    features: bool,
    /// A field that occurs twice.
    twice: Option<&'static str>,
}

impl<'a> RouteFields<'a> {
    /// Adds a member of the body.
    fn add(&mut self, name: &str, value: RawJson<'a>) {
        if let Some(own) = OWN.into_iter().find(|own| *own == name) {
            if self.own.insert(own, value).is_some() {
                self.twice = Some(own);
            }
            return;
        }
        let there = !value.is_null();
        match name {
            "messages" => self.messages = there,
            "prompt" => self.prompt = there,
            "features" => self.features = there,
            _ => {}
        }
    }

    fn take(&mut self, name: &str) -> Option<RawJson<'a>> {
        self.own.remove(name).filter(|value| !value.is_null())
    }

    /// Reads a field of the type that [`api::RouteRequest`] gives it.
    fn read<T: DeserializeOwned>(
        &mut self,
        name: &'static str,
        expected: &str,
        is_valid: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let read = serde_json::from_str::<T>(value.as_str()).ok();
        let read = read.filter(is_valid);
        read.map(Some)
            .ok_or_else(|| wrong(name, &form_of(value), expected))
    }
}

/// Refuses a prompt that no engine accepts: no engine would report it here.
fn check_form(prompt: &PromptPart<'_>) -> Result<(), ApiError> {
    let (param, expected) = match prompt {
        PromptPart::None => ("prompt", "a text, a list of token ids, or a list of either"),
        PromptPart::Messages(messages) if !is_chat(messages.raw()) => {
            ("messages", "a list of one or more messages")
        }
        PromptPart::Messages(_)
        | PromptPart::Text(_)
        | PromptPart::TokenIds(_)
        | PromptPart::TokenIdsWithMedia { .. }
        | PromptPart::Batch { .. } => {
            return Ok(());
        }
    };
    let message = format!("{param} is of the wrong form: expected {expected}");
    Err(ApiError::new(ErrorCode::InvalidRequest, message).param(param))
}

fn is_chat(messages: RawJson<'_>) -> bool {
    let mut elements = messages.elements().into_iter().flatten().peekable();
    elements.peek().is_some() && elements.all(|message| message.members().is_some())
}

fn router_config(value: RawJson<'_>, overrides: &mut HeaderOverrides) -> Result<(), ApiError> {
    let Ok(Value::Object(members)) = serde_json::from_str(value.as_str()) else {
        return Err(wrong(ROUTER_CONFIG, &form_of(value), ROUTER_CONFIG_FORM));
    };
    set_router_config(&members, overrides)
}

/// Applies the members of `router_config_override`.
pub(super) fn set_router_config(
    members: &Map<String, Value>,
    overrides: &mut HeaderOverrides,
) -> Result<(), ApiError> {
    for (key, value) in members {
        let (field, range) = match key.as_str() {
            "overlap_score_weight" => (&mut overrides.overlap_weight, OVERLAP_WEIGHT),
            "router_temperature" => (&mut overrides.temperature, TEMPERATURE),
            _ => {
                let message = format!(
                    "{ROUTER_CONFIG} has the unknown key {:?}: expected {ROUTER_CONFIG_FORM}",
                    printable(key)
                );
                return Err(ApiError::new(ErrorCode::InvalidRequest, message).param(ROUTER_CONFIG));
            }
        };
        if value.is_null() {
            continue;
        }
        let number = value.as_f64().filter(|number| range.contains(number));
        let expected = || format!("a number from {} to {}", range.start(), range.end());
        let refused = || {
            let param = format!("{ROUTER_CONFIG}.{key}");
            wrong(&param, &form_of_value(value), &expected())
        };
        *field = Some(number.ok_or_else(refused)?);
    }
    Ok(())
}

/// Returns how an error shows a value.
fn form_of(value: RawJson<'_>) -> String {
    let text = value.as_str();
    match text.as_bytes().first() {
        // These are not built, as no part of them is shown.
        Some(b'[') => "a list".to_owned(),
        Some(b'{') => "an object".to_owned(),
        // Some numbers and escapes are beyond that parser.
        _ => serde_json::from_str::<Value>(text)
            .map_or_else(|_| printable(text), |value| form_of_value(&value)),
    }
}

fn form_of_value(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => format!("{:?}", printable(text)),
        other => other.to_string(),
    }
}

fn wrong(param: &str, found: &str, expected: &str) -> ApiError {
    ApiError::new(
        ErrorCode::InvalidRequest,
        format!("{param} is {found}: expected {expected}"),
    )
    .param(param)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn refused(body: &str) -> (ErrorCode, Option<String>) {
        let error = read(body.as_bytes(), &HeaderOverrides::default()).expect_err(body);
        (error.code, error.param)
    }

    #[test]
    fn the_fields_that_are_read_are_those_of_the_described_body() {
        let described = serde_json::json!(api::RouteRequest::default());
        let prompt = ["model", "messages", "prompt", "features", "tools"];
        let options = described.as_object().expect("an object").keys();
        assert!(options.filter(|key| !prompt.contains(&&***key)).eq(OWN));
    }

    #[test]
    fn the_prompt_is_messages_or_text_or_token_ids() {
        let prompt = |body: &str| {
            format!(
                "{:?}",
                read(body.as_bytes(), &HeaderOverrides::default())
                    .expect(body)
                    .view
                    .prompt
            )
        };
        assert!(
            prompt(r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#)
                .starts_with("Messages")
        );
        assert_eq!(
            prompt(r#"{"model":"m","prompt":"a b","messages":null}"#),
            r#"Text("a b")"#
        );
        assert_eq!(
            prompt(r#"{"model":"m","prompt":[7,8]}"#),
            "TokenIds([7, 8])"
        );
        assert_eq!(
            prompt(r#"{"model":"m","token_ids":[1,2,4294967295]}"#),
            "TokenIds([1, 2, 4294967295])"
        );
        let features = r#""features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":1,"length":1}]}}"#;
        assert!(
            prompt(&format!(r#"{{"model":"m","token_ids":[1,2],{features}}}"#))
                .starts_with("TokenIdsWithMedia { ids: [1, 2]")
        );
        for body in [
            r#"{"model":"m"}"#,
            r#"{"model":"m","prompt":"a","token_ids":[1]}"#,
            r#"{"model":"m","prompt":"a","messages":[]}"#,
            r#"{"model":"m","prompt":null}"#,
        ] {
            assert_eq!(
                refused(body),
                (ErrorCode::InvalidRequest, Some("messages".into())),
                "{body}"
            );
        }
    }

    #[test]
    fn a_prompt_of_an_unknown_form_is_rejected() {
        for prompt in [
            "5",
            "true",
            "{}",
            "[]",
            "[-1]",
            "[1.5]",
            "[{}]",
            "[null]",
            "[[]]",
            "[[\"a\"]]",
            "[1,\"a\"]",
        ] {
            let body = format!(r#"{{"model":"m","prompt":{prompt}}}"#);
            assert_eq!(
                refused(&body),
                (ErrorCode::InvalidRequest, Some("prompt".into())),
                "{prompt}"
            );
        }
        for messages in ["5", "\"hello\"", "{}", "[]", "[\"hello\"]", "[{},null]"] {
            let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
            assert_eq!(
                refused(&body),
                (ErrorCode::InvalidRequest, Some("messages".into())),
                "{messages}"
            );
        }
        for prompt in ["\"\"", "[\"a\"]", "[\"a\",\"b\"]", "[[1],[2]]", "[[1]]"] {
            let body = format!(r#"{{"model":"m","prompt":{prompt}}}"#);
            read(body.as_bytes(), &HeaderOverrides::default()).expect(prompt);
        }
    }

    #[test]
    #[contract("DY16")]
    fn the_body_overrides_the_headers_one_by_one() {
        let headers = HeaderOverrides {
            worker: Some("w1".into()),
            policy: Some(Policy::Warm),
            overlap_weight: Some(3.0),
            temperature: Some(0.5),
            priority: 7,
        };
        let plain = read(br#"{"model":"m","prompt":"a"}"#, &headers).expect("a good body");
        assert_eq!(
            (plain.overrides, plain.worker_param),
            (headers.clone(), "x-warmroute-worker")
        );
        let body = br#"{"model":"m","prompt":"a","policy":"round-robin","worker":"w2/1",
                        "router_config_override":{"overlap_score_weight":0,"router_temperature":null}}"#;
        let route_body = read(body, &headers).expect("a good body");
        let want = HeaderOverrides {
            worker: Some("w2/1".into()),
            policy: Some(Policy::RoundRobin),
            overlap_weight: Some(0.0),
            ..headers
        };
        assert_eq!(
            (route_body.overrides, route_body.worker_param),
            (want, "worker")
        );
    }

    #[test]
    fn a_field_out_of_range_or_of_another_form_is_rejected_by_name() {
        let long = format!("\"request_id\":\"{}\"", "a".repeat(129));
        for (field, code, param) in [
            (
                r#""router_config_override":{"overlap_score_weight":100.1}"#,
                ErrorCode::InvalidRequest,
                "router_config_override.overlap_score_weight",
            ),
            (
                r#""router_config_override":{"overlap_score_weight":-1}"#,
                ErrorCode::InvalidRequest,
                "router_config_override.overlap_score_weight",
            ),
            (
                r#""router_config_override":{"router_temperature":10.5}"#,
                ErrorCode::InvalidRequest,
                "router_config_override.router_temperature",
            ),
            (
                r#""router_config_override":{"router_temperature":"1"}"#,
                ErrorCode::InvalidRequest,
                "router_config_override.router_temperature",
            ),
            (
                r#""router_config_override":{"temperature":1}"#,
                ErrorCode::InvalidRequest,
                "router_config_override",
            ),
            (
                r#""router_config_override":[]"#,
                ErrorCode::InvalidRequest,
                "router_config_override",
            ),
            (
                r#""expected_output_tokens":0"#,
                ErrorCode::InvalidRequest,
                "expected_output_tokens",
            ),
            (
                r#""expected_output_tokens":1.5"#,
                ErrorCode::InvalidRequest,
                "expected_output_tokens",
            ),
            (r#""policy":"best""#, ErrorCode::UnknownPolicy, "policy"),
            (r#""policy":3"#, ErrorCode::InvalidRequest, "policy"),
            (r#""worker":["w1"]"#, ErrorCode::InvalidRequest, "worker"),
            (r#""exclude":"w1""#, ErrorCode::InvalidRequest, "exclude"),
            (r#""exclude":[1]"#, ErrorCode::InvalidRequest, "exclude"),
            (
                r#""request_id":"""#,
                ErrorCode::InvalidRequest,
                "request_id",
            ),
            (
                r#""request_id":"two words""#,
                ErrorCode::InvalidRequest,
                "request_id",
            ),
            (&long, ErrorCode::InvalidRequest, "request_id"),
            (
                r#""policy":"warm","policy":"warm""#,
                ErrorCode::DuplicateKey,
                "policy",
            ),
        ] {
            let body = format!(r#"{{"model":"m","prompt":"a",{field}}}"#);
            assert_eq!(refused(&body), (code, Some(param.to_owned())), "{field}");
        }
        for ids in ["[]", "[-1]", "[1.0]", "[4294967296]", "\"1\"", "[[1]]"] {
            let body = format!(r#"{{"model":"m","token_ids":{ids}}}"#);
            assert_eq!(
                refused(&body),
                (ErrorCode::InvalidRequest, Some("token_ids".into())),
                "{ids}"
            );
        }
        assert_eq!(
            refused(r#"{"prompt":"a"}"#),
            (ErrorCode::InvalidRequest, Some("model".into()))
        );
        assert_eq!(refused("[1]").0, ErrorCode::InvalidRequest);
        assert_eq!(refused("{").0, ErrorCode::InvalidJson);
    }
}
