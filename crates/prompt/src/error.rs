//! Why the token ids of a request are unknown.

/// The reason why the engine's token ids are unknown. None of them is a reason to reject a
/// generation: the engine decides.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The model has no template that works in this crate.
    #[error("the model has no usable chat template: {0}")]
    NoTemplate(String),
    /// A field is not the expected JSON. The error does not quote the value: it may be the prompt.
    #[error("{field} is not readable: {found} at line {line} column {column}")]
    Json {
        /// The request's field.
        field: &'static str,
        /// The fault, in general terms.
        found: &'static str,
        /// Line in the field's text, from 1 on.
        line: usize,
        /// Column in that line, in bytes.
        column: usize,
    },
    /// Only the engine knows the tokens of a feature in the request.
    #[error("{what} is not rendered here, only in the engine")]
    Unsupported {
        /// The feature.
        what: String,
        /// Whether it is the length of the chat: it takes more steps or memory than a render may.
        is_too_long: bool,
    },
    /// The engine rejects the request too.
    #[error("{0}")]
    Refused(String),
    /// The caller no longer waits for the result; see [`CancelFlag`](crate::CancelFlag).
    #[error("the computation was cancelled")]
    Cancelled,
    /// The tokenizer library failed.
    #[error("the text cannot be tokenised: {0}")]
    Tokenizer(String),
}

impl PromptError {
    /// Returns whether the engine would reject the request as well. Otherwise only the engine
    /// decides.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Json { .. } | Self::Refused(_))
    }

    /// Returns a word for logs: the message may quote the request.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NoTemplate(_) => "no_template",
            Self::Json { .. } => "json",
            Self::Unsupported { .. } => "unsupported",
            Self::Refused(_) => "refused",
            Self::Cancelled => "cancelled",
            Self::Tokenizer(_) => "tokenizer",
        }
    }
}
