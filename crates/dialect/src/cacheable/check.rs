//! Decides whether a finished reply may be cached.
//!
//! One rule for whole replies and for replies joined from a stream (contract CH15, S47). The caller
//! checks the request and the status.
//!
//! **Invariant**: a reply passes only if every choice in it finished, and none because of an error.

use std::borrow::Cow;

use super::{CacheableReply, NotCacheable, partial::is_empty_value};
use crate::{
    Dialect,
    json::{self, RawJson},
};

/// Finish reasons of a reply that the model did not complete.
const BROKEN: [&str; 5] = ["error", "abort", "aborted", "cancelled", "timeout"];

/// Checks whether a whole reply of status 200 may be cached. It is cached as received.
///
/// ```
/// use dialect::{Dialect, NotCacheable, keep_whole};
///
/// let reply = |why: &str| {
///     format!(r#"{{"object":"chat.completion","choices":[{{"index":0,"message":{{"content":"hi"}},"finish_reason":"{why}"}}]}}"#)
/// };
/// assert!(keep_whole(Dialect::Chat, reply("stop").as_bytes()).is_ok());
/// assert_eq!(keep_whole(Dialect::Chat, reply("error").as_bytes()), Err(NotCacheable::FinishedInError));
/// ```
///
/// # Errors
///
/// If the reply may not be cached.
pub fn keep_whole(dialect: Dialect, body: &[u8]) -> Result<CacheableReply, NotCacheable> {
    let text = std::str::from_utf8(body).map_err(|_| NotCacheable::Unreadable)?;
    let has_usage = check_reply(dialect, text)?;
    Ok(CacheableReply {
        body: body.to_vec(),
        has_usage,
    })
}

/// Checks a reply; returns whether it has its usage.
pub(super) fn check_reply(dialect: Dialect, text: &str) -> Result<bool, NotCacheable> {
    let reply = json::object(text.as_bytes()).ok_or(NotCacheable::Unreadable)?;
    no_error(reply)?;
    let object = reply.member("object").and_then(RawJson::string);
    let of = |object: Option<Cow<'_, str>>, known: &str| match object.as_deref() {
        Some("error") => Err(NotCacheable::ErrorInBand),
        Some(object) if object != known => Err(NotCacheable::UnknownShape),
        _ => Ok(()),
    };
    match dialect {
        Dialect::Chat => {
            of(object, "chat.completion")?;
            for choice in choices(reply)? {
                chat_choice(choice)?;
            }
        }
        Dialect::Completions => {
            of(object, "text_completion")?;
            for choice in choices(reply)? {
                choice
                    .member("text")
                    .and_then(RawJson::string)
                    .ok_or(NotCacheable::UnknownShape)?;
            }
        }
        Dialect::Messages => {
            of(reply.member("type").and_then(RawJson::string), "message")?;
            reply
                .member("content")
                .filter(|content| content.elements().is_some())
                .ok_or(NotCacheable::UnknownShape)?;
            finished(reply, "stop_reason")?;
        }
        Dialect::Embeddings
        | Dialect::Rerank
        | Dialect::Score
        | Dialect::Responses
        | Dialect::ChatBatch
        | Dialect::TokenIds
        | Dialect::SglangGenerate => return Err(NotCacheable::OtherDialect),
    }
    Ok(reply
        .member("usage")
        .is_some_and(|usage| usage.members().is_some()))
}

/// Returns the choices, each of which has finished; they are numbered from 0 in their order.
fn choices(reply: RawJson<'_>) -> Result<Vec<RawJson<'_>>, NotCacheable> {
    let choices: Vec<_> = reply
        .member("choices")
        .and_then(RawJson::elements)
        .ok_or(NotCacheable::UnknownShape)?
        .collect();
    if choices.is_empty() {
        return Err(NotCacheable::NotWhole);
    }
    for (at, choice) in choices.iter().enumerate() {
        no_error(*choice)?;
        let index = choice.member("index").ok_or(NotCacheable::UnknownShape)?;
        if index.integer() != i64::try_from(at).ok() {
            // A choice is missing, or out of order.
            return Err(NotCacheable::NotWhole);
        }
        finished(*choice, "finish_reason")?;
    }
    Ok(choices)
}

fn chat_choice(choice: RawJson<'_>) -> Result<(), NotCacheable> {
    let message = choice.member("message").ok_or(NotCacheable::UnknownShape)?;
    no_error(message)?;
    for call in message
        .member("tool_calls")
        .and_then(RawJson::elements)
        .into_iter()
        .flatten()
    {
        if call.member("type").and_then(RawJson::string).as_deref() != Some("custom") {
            arguments(call.member("function"))?;
        }
    }
    message
        .member("function_call")
        .map_or(Ok(()), |call| arguments(Some(call)))
}

/// Rejects invalid arguments: a call with cut or malformed arguments would fail for every client.
fn arguments(function: Option<RawJson<'_>>) -> Result<(), NotCacheable> {
    let text = function
        .and_then(|function| function.member("arguments"))
        .and_then(RawJson::string);
    let parses = text.is_some_and(|text| json::whole(&text).is_ok());
    if parses {
        Ok(())
    } else {
        Err(NotCacheable::ToolArguments)
    }
}

fn finished(of: RawJson<'_>, name: &str) -> Result<(), NotCacheable> {
    let reason = of
        .member(name)
        .ok_or(NotCacheable::NotWhole)?
        .string()
        .ok_or(NotCacheable::UnknownShape)?;
    match &*reason {
        "" => Err(NotCacheable::NotWhole),
        reason
            if BROKEN
                .iter()
                .any(|broken| reason.eq_ignore_ascii_case(broken)) =>
        {
            Err(NotCacheable::FinishedInError)
        }
        _ => Ok(()),
    }
}

/// Checks that the value is an object without a non-empty member `error`.
fn no_error(of: RawJson<'_>) -> Result<(), NotCacheable> {
    let mut members = of.members().ok_or(NotCacheable::UnknownShape)?;
    let fine = members.all(|(name, value)| name != "error" || is_empty_value(value.as_str()));
    if fine {
        Ok(())
    } else {
        Err(NotCacheable::ErrorInBand)
    }
}
