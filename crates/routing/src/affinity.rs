//! Keys that a request shares with others that should go to the same target.
//!
//! Keys are hashes: this module reads no headers or bodies.

use kv_blocks::WorkerId;

/// Keys by which the hashing policies place a request. Equal keys go to one target.
///
/// ```
/// use routing::Affinity;
///
/// let nothing_known = Affinity::default();
/// let chat = Affinity { session_key: Some(0x5eed), ..nothing_known };
/// assert_eq!((chat.prefix_key, chat.session_key), (None, Some(0x5eed)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// SHA-256 over the model and the beginning of the prompt: its system text, else its first
    /// message. `None` when the request has neither.
    pub prefix_key: Option<[u8; 32]>,
    /// Hash of the session's identity: a header, a field of the body, as a last resort the body
    /// itself.
    pub session_key: Option<u64>,
    /// The worker that served a prompt with this beginning, from the prefix memory. A hint for
    /// cache-based policies where no target is known to hold any of the prompt.
    pub served_by: Option<WorkerId>,
}

impl Affinity {
    /// Returns the prefix key as a number: its first eight bytes, most significant first.
    pub(crate) fn prefix(&self) -> Option<u64> {
        self.prefix_key
            .map(|[a, b, c, d, e, f, g, h, ..]| u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Returns the most specific key: the session's, else the prefix's.
    pub(crate) fn session(&self) -> Option<u64> {
        self.session_key.or_else(|| self.prefix())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_takes_precedence_over_a_prefix_of_which_eight_bytes_count() {
        let mut digest = [0xff; 32];
        digest[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let prefix = Affinity {
            prefix_key: Some(digest),
            ..Affinity::default()
        };
        assert_eq!(prefix.session(), Some(0x0102_0304_0506_0708));
        assert_eq!(
            Affinity {
                session_key: Some(9),
                ..prefix
            }
            .session(),
            Some(9)
        );
        assert_eq!(Affinity::default().session(), None);
    }
}
