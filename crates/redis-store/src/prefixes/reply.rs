//! Checked access to the parts of an answer.

use redis::Value;

use crate::RedisFault;

/// Returns a list; `what` names the expected content in the fault.
pub(super) fn array<'a>(answer: &'a Value, what: &str) -> Result<&'a [Value], RedisFault> {
    match answer {
        Value::Array(items) => Ok(items),
        Value::ServerError(error) => Err(RedisFault::from(&error.clone().into())),
        _ => Err(RedisFault::unusable(what)),
    }
}

/// Returns a text.
pub(super) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// Returns a score that is a valid number of tokens.
pub(super) fn tokens(score: &Value) -> Option<u32> {
    let score: f64 = std::str::from_utf8(bytes(score)?).ok()?.parse().ok()?;
    if !(0.0..=f64::from(u32::MAX)).contains(&score) {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "just checked"
    )]
    Some(score as u32)
}
