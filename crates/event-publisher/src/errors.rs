//! The reasons why a publisher could not be created, or an event not be published.

use std::io;

use net::ListenError;

/// An argument that cannot be used: its name, its value and the expected one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ArgumentError(pub String);

/// Why a publisher could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// An option cannot be used.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// The system gave no thread.
    #[error("{0}")]
    NoThread(io::Error),
    /// Another socket listens at the endpoint.
    #[error("{0}")]
    InUse(ListenError),
    /// The endpoint cannot be listened on.
    #[error("{0}")]
    Unusable(ListenError),
}

impl From<ListenError> for CreateError {
    fn from(error: ListenError) -> Self {
        match error {
            ListenError::Taken { .. } => Self::InUse(error),
            ListenError::Forbidden { .. } | ListenError::Unusable { .. } => Self::Unusable(error),
        }
    }
}

/// Why an event was not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// An argument cannot be used.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// The publisher is closed.
    #[error("this EventPublisher is closed: create another one")]
    Closed,
    /// This is a child process of the publisher's.
    #[error(
        "this EventPublisher belongs to process {owner} and does not survive the fork into process {own}: create one \
         after the fork"
    )]
    Forked {
        /// The process that created the publisher.
        owner: u32,
        /// This process.
        own: u32,
    },
}
