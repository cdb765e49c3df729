//! Why requests to JetStream fail.

/// Codes of the server's errors that callers distinguish.
pub(super) const STREAM_NAME_IN_USE: u64 = 10_058;
pub(super) const NO_MESSAGE_FOUND: u64 = 10_037;
const STREAM_NOT_FOUND: u64 = 10_059;
const CONSUMER_NOT_FOUND: u64 = 10_014;
const NOT_ENABLED: [u64; 2] = [10_039, 10_076];
const WRONG_LAST_SEQUENCE: u64 = 10_071;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JetStreamError {
    /// Nobody answers on the subject of JetStream.
    #[error(
        "the nats server has no JetStream, or no stream takes {subject}: start it with -js, or check the permissions"
    )]
    Nobody {
        /// The subject.
        subject: String,
    },
    /// No answer in time, or the connection ended.
    #[error("the nats server did not answer on {subject}: {reason}")]
    NoAnswer {
        /// The subject.
        subject: String,
        /// The reason.
        reason: String,
    },
    /// The server refused.
    #[error("the nats server refuses {subject}: {description} ({code})")]
    Refused {
        /// The subject.
        subject: String,
        /// The code of JetStream's error.
        code: u64,
        /// Its description.
        description: String,
    },
    /// An answer of unknown form.
    #[error("the answer on {subject} cannot be read: {reason}")]
    Unreadable {
        /// The subject.
        subject: String,
        /// The reason.
        reason: String,
    },
}

impl JetStreamError {
    /// Returns whether the stream, consumer or message does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { code, .. }
            if [STREAM_NOT_FOUND, CONSUMER_NOT_FOUND, NO_MESSAGE_FOUND].contains(code))
    }

    /// Returns whether the server or the account has no JetStream.
    pub fn is_not_enabled(&self) -> bool {
        match self {
            Self::Nobody { .. } => true,
            Self::Refused { code, .. } => NOT_ENABLED.contains(code),
            _ => false,
        }
    }

    /// Returns whether another revision than the expected one was the last.
    pub fn is_other_revision(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == WRONG_LAST_SEQUENCE)
    }
}
