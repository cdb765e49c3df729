//! Errors of single events.

use crate::wire::MsgpackError;

/// Why one event of a batch is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event is malformed: {reason}")]
pub struct VllmEventError {
    /// The problem.
    pub reason: &'static str,
}

impl From<MsgpackError> for VllmEventError {
    fn from(MsgpackError(reason): MsgpackError) -> Self {
        Self { reason }
    }
}
