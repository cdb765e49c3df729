//! Why something a publisher sent is of no use.

/// Why a whole payload is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event list of {bytes} bytes is unusable: {reason}")]
pub struct BatchError {
    /// Length of the payload.
    pub bytes: usize,
    /// What is wrong, in at most some 200 characters.
    pub reason: String,
}

/// Why one event of a payload is unusable. It costs itself only.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event is malformed: {reason}")]
pub struct EventError {
    /// What is wrong, in at most some 200 characters.
    pub reason: String,
}

impl EventError {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: cut(reason.into()),
        }
    }
}

/// What others wrote is quoted in part only.
pub(crate) fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(200) {
        text.truncate(end);
    }
    text
}
