//! The hash by which an event names a prompt prefix.

use std::fmt;

use kv_blocks::SequenceHash;

/// Hash of a prompt prefix as the event's sender computes it; opaque to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PrefixHash {
    /// The prefix key of a request: SHA-256 over model and first message.
    Key([u8; 32]),
    /// The sequence hash of the prefix's last block.
    Sequence(SequenceHash),
}

impl PrefixHash {
    /// Returns one of `parts` equal parts; the parts are as even as the hashes.
    pub(crate) fn spread(&self, parts: usize) -> usize {
        let number = match self {
            Self::Key(bytes) => {
                usize::from_le_bytes(*bytes.first_chunk().expect("a key is longer than a number"))
            }
            Self::Sequence(hash) => usize::from_le_bytes(hash.0.to_le_bytes()),
        };
        number % parts
    }
}

settings::words! {
    /// Kind of prefix hash that an event source sends (`event_sources[].prefix_hash_kind`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum PrefixHashKind {
        /// [`PrefixHash::Key`], 64 hex digits.
        #[default]
        PrefixKey = "prefix_key",
        /// [`PrefixHash::Sequence`], 16 hex digits.
        SequenceHash = "sequence_hash",
    }
}

/// A text that is not a prefix hash of the expected kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "prefix_hash {text:?} is no {kind}: expected {digits} hex digits; prefix_hash_kind of the event source says which kind it sends",
    digits = kind.digits()
)]
pub struct PrefixHashError {
    /// The text, cut after 80 characters.
    pub text: String,
    /// The expected kind.
    pub kind: PrefixHashKind,
}

impl PrefixHashKind {
    /// Parses the hex digits of an event, in either case.
    ///
    /// ```
    /// use prefix_view::PrefixHashKind;
    ///
    /// let prefix = PrefixHashKind::SequenceHash.parse("EA06fc71a5ee6e88")?;
    /// assert_eq!(prefix.to_string(), "ea06fc71a5ee6e88");
    /// assert!(PrefixHashKind::PrefixKey.parse("ea06fc71a5ee6e88").is_err());
    /// # Ok::<(), prefix_view::PrefixHashError>(())
    /// ```
    pub fn parse(self, text: &str) -> Result<PrefixHash, PrefixHashError> {
        let read = match self {
            Self::PrefixKey => bytes(text).map(PrefixHash::Key),
            Self::SequenceHash => bytes(text)
                .map(|bytes| PrefixHash::Sequence(SequenceHash(u64::from_be_bytes(bytes)))),
        };
        read.ok_or_else(|| PrefixHashError {
            text: text.chars().take(80).collect(),
            kind: self,
        })
    }

    fn digits(self) -> usize {
        match self {
            Self::PrefixKey => 64,
            Self::SequenceHash => 16,
        }
    }
}

/// Parses exactly `N` bytes, two hex digits each.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

impl fmt::Display for PrefixHashKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Hex digits, as in events and keys.
impl fmt::Display for PrefixHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            Self::Sequence(hash) => hash.fmt(f),
        }
    }
}
