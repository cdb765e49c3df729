//! Errors in a publisher's data.

use crate::standard::EventNumber;

/// Why a whole payload is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event list of {bytes} bytes is unusable: {reason}")]
pub struct BatchError {
    /// Length of the payload.
    pub bytes: usize,
    /// The problem, in at most some 200 characters.
    pub reason: String,
}

/// Why one event of a payload is unusable. Other events are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event is malformed: {reason}")]
pub struct EventError {
    /// The problem, in at most some 200 characters.
    pub reason: String,
    /// The number that the event uses up, where its stream and number were readable.
    pub number: Option<Box<EventNumber>>,
}

impl EventError {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: cut(reason.into()),
            number: None,
        }
    }
}

/// Shortens foreign text for an error message.
pub(crate) fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(200) {
        text.truncate(end);
    }
    text
}
