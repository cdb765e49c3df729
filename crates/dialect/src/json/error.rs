//! The limits of a text, and why it is refused.

/// Maximum nesting depth of containers.
pub const MAX_DEPTH: u32 = 128;

/// Maximum number of values and keys in a text, all levels together: enough for a prompt of a
/// million token ids.
pub const MAX_NODES: u32 = 1 << 20;

/// The reason why a text is not one JSON value, and the byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct JsonError {
    /// Offset in bytes from the start of the text.
    pub at: usize,
    /// The unexpected or missing token.
    pub what: &'static str,
}
