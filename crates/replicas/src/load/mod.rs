//! Load between `routing` and the wire: workers are numbers in a process and names between
//! processes, and a long prompt's known beginning is one hash.

mod decode;
mod directory;
mod encode;

pub(crate) use decode::LoadDecoder;
pub use directory::WorkerDirectory;
pub(crate) use encode::{ChangeEncoder, state_page};

/// A change that is not the router's: it belongs to the request path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedNote {
    /// A worker holds the stored response with this hash of its id.
    ResponseHome {
        /// Hash of the response's id.
        key: u128,
        /// The worker's name.
        worker: std::sync::Arc<str>,
    },
    /// A worker asked to be left alone for this time.
    Cooldown {
        /// The worker's name.
        worker: std::sync::Arc<str>,
        /// The time from now on.
        wait: std::time::Duration,
    },
}
