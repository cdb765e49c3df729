//! Why a worker is not ready.

use std::{fmt, sync::Arc};

/// The last error of a worker: its kind, and a text for operators with the problem and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerProblem {
    /// The kind.
    pub kind: ProblemKind,
    text: Arc<str>,
}

/// The kind of a problem, which tells nothing that the worker's address has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// The port refuses connections.
    Refused,
    /// The address is not permitted.
    Forbidden,
    /// No connection for another reason.
    Unreachable,
    /// The certificate is not trusted.
    Untrusted,
    /// No answer in time.
    TimedOut,
    /// An answer that is no engine's.
    Unusable,
    /// An answer with an unexpected status.
    Status,
    /// The engine is loading.
    Loading,
    /// It serves no model that is wanted.
    NoModel,
    /// Requests of clients fail.
    Requests,
    /// This process could not ask.
    NotAsked,
}

impl WorkerProblem {
    /// Creates a problem.
    pub fn new(kind: ProblemKind, text: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }

    /// The problem of a worker whose port refuses.
    pub(crate) fn refused() -> Self {
        Self::new(
            ProblemKind::Refused,
            "connection refused: start the engine or check the url",
        )
    }

    /// Returns the text, which may tell what the worker has answered.
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }
}

impl fmt::Display for WorkerProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl ProblemKind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Refused,
        Self::Forbidden,
        Self::Unreachable,
        Self::Untrusted,
        Self::TimedOut,
        Self::Unusable,
        Self::Status,
        Self::Loading,
        Self::NoModel,
        Self::Requests,
        Self::NotAsked,
    ];

    /// Returns the word of the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Forbidden => "forbidden_address",
            Self::Unreachable => "unreachable",
            Self::Untrusted => "untrusted_certificate",
            Self::TimedOut => "timed_out",
            Self::Unusable => "unusable_answer",
            Self::Status => "unexpected_status",
            Self::Loading => "loading",
            Self::NoModel => "no_model",
            Self::Requests => "requests_failed",
            Self::NotAsked => "not_asked",
        }
    }
}
