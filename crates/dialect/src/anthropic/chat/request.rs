//! Translates a chat completion request into a messages request.

use super::{super::TranslatedRequest, content};
use crate::{RawJson, ViewError, json::ObjectWriter, tokenize::fields_and_members};

/// Members that are read here, followed by those that have no meaning for a message and do not
/// change the output.
const KEYS: [&str; 20] = [
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "stream",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "user",
    "response_format",
    "n",
    "stream_options",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "metadata",
    "store",
    "service_tier",
    "prompt_cache_key",
];
const SEVERAL: &str = "n is above 1, and a message is one reply: send the request several times";
/// Default of `max_tokens`: required in a messages request, optional in a chat.
const USUAL_LENGTH: &str = "4096";

/// Translates the request into a messages request. Unknown members are passed on unchanged.
///
/// ```
/// let body = br#"{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}],"stop":"x"}"#;
/// assert_eq!(
///     String::from_utf8(dialect::chat_to_messages(body).unwrap().body).unwrap(),
///     r#"{"model":"m","max_tokens":4096,"system":"Be brief.","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"stop_sequences":["x"]}"#
/// );
/// ```
///
/// # Errors
///
/// If the body is not one JSON object in UTF-8, or a member that is read here occurs twice.
pub fn chat_to_messages(body: &[u8]) -> Result<TranslatedRequest, ViewError> {
    let (found, members) = fields_and_members(body, KEYS)?;
    let [
        model,
        messages,
        max_tokens,
        max_completion,
        stop,
        stream,
        tools,
        choice,
        parallel,
        user,
        format,
        n,
        ..,
    ] = found.map(|value| value.filter(|value| !value.is_null()));
    let several = n.and_then(RawJson::integer).is_some_and(|n| n > 1);
    let mut untranslatable = several.then(|| SEVERAL.to_owned());
    let mut out = String::with_capacity(body.len() + 256);
    let mut message = ObjectWriter::open(&mut out);
    message.some("model", model);
    message.raw(
        "max_tokens",
        max_completion
            .or(max_tokens)
            .map_or(USUAL_LENGTH, RawJson::as_str),
    );
    match messages {
        // The worker rejects a value that is no list.
        Some(value) if value.elements().is_none() => message.raw("messages", value.as_str()),
        _ => content::conversation(&mut message, messages, &mut untranslatable),
    }
    stop_sequences(&mut message, stop);
    message.some("stream", stream);
    functions(&mut message, tools);
    chosen(
        &mut message,
        choice,
        parallel.and_then(RawJson::flag) == Some(false),
        tools.is_some(),
    );
    if user.is_some() {
        let mut metadata = message.object("metadata");
        metadata.some("user_id", user);
        metadata.close();
    }
    if let Some(format) = format {
        response_format(&mut message, format, &mut untranslatable);
    }
    let passed_on = message.pass_on(&members, |name| KEYS.contains(&name));
    message.close();
    Ok(TranslatedRequest {
        body: out.into_bytes(),
        untranslatable,
        passed_on,
    })
}

fn stop_sequences(message: &mut ObjectWriter<'_>, stop: Option<RawJson<'_>>) {
    match stop {
        Some(stop) if stop.string().is_some() => {
            message.raw("stop_sequences", &format!("[{}]", stop.as_str()))
        }
        stop => message.some("stop_sequences", stop),
    }
}

/// Writes the functions, each with its schema as the client wrote it.
fn functions(message: &mut ObjectWriter<'_>, tools: Option<RawJson<'_>>) {
    let Some(elements) = tools.and_then(RawJson::elements) else {
        return;
    };
    let mut list = message.array("tools");
    for tool in elements {
        let Some(function) = tool.member("function") else {
            // The worker rejects it.
            list.next().push_str(tool.as_str());
            continue;
        };
        let mut one = list.object();
        one.some("name", function.member("name"));
        one.some("description", function.member("description"));
        let schema = function
            .member("parameters")
            .map_or(r#"{"type":"object"}"#, RawJson::as_str);
        one.raw("input_schema", schema);
        one.close();
    }
    list.close();
}

fn chosen(
    message: &mut ObjectWriter<'_>,
    choice: Option<RawJson<'_>>,
    alone: bool,
    any_tools: bool,
) {
    let word = choice.and_then(RawJson::string);
    let name = choice
        .and_then(|choice| choice.member("function"))
        .and_then(|function| function.member("name"));
    let kind = match (word.as_deref(), name) {
        (_, Some(_)) => "tool",
        (Some("none"), _) => "none",
        (Some("required"), _) => "any",
        (Some("auto"), _) => "auto",
        (None, None) if alone && any_tools => "auto",
        _ => return,
    };
    let mut choice = message.object("tool_choice");
    choice.text("type", kind);
    choice.some("name", name);
    if alone && kind != "none" {
        choice.raw("disable_parallel_tool_use", "true");
    }
    choice.close();
}

/// Writes the form of the reply.
fn response_format(
    message: &mut ObjectWriter<'_>,
    format: RawJson<'_>,
    untranslatable: &mut Option<String>,
) {
    let schema = format
        .member("json_schema")
        .and_then(|response_format| response_format.member("schema"));
    match (
        format.member("type").and_then(RawJson::string).as_deref(),
        schema,
    ) {
        (Some("json_schema"), Some(schema)) => {
            let mut config = message.object("output_config");
            let mut format = config.object("format");
            format.text("type", "json_schema");
            format.some("schema", Some(schema));
            format.close();
            config.close();
        }
        (Some("text"), _) => {}
        _ => {
            untranslatable.get_or_insert_with(|| {
                "response_format has no word in a message: use json_schema, or leave it out"
                    .to_owned()
            });
        }
    }
}
