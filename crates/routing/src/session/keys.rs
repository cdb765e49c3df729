//! The keys of a session, and the effect of a decision on it.

use super::PromptGrowth;

/// The keys of a request's session. Equal keys are one session: the caller mixes in everything that
/// separates sessions, such as the model and the salt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionKeys {
    /// Hash of the name that the client gave the session.
    pub name: Option<u64>,
    /// The earlier requests that it may continue, and the key for later ones.
    pub growth: Option<PromptGrowth>,
}

/// The effect of a decision on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionNote {
    /// The session's first key: equal in all of its requests.
    pub id: u64,
    /// The target relative to the session's last one.
    pub state: SessionState,
}

/// The placement of a session relative to its last target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// The session was unknown.
    New,
    /// On its target.
    Kept,
    /// Elsewhere: its target has too many requests.
    MovedFull,
    /// Elsewhere: its target is not a candidate.
    MovedGone,
    /// Elsewhere: the policy chose so.
    MovedByPolicy,
    /// Elsewhere: the request names another worker.
    MovedByPin,
}
