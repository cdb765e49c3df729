//! The key of a cached reply.

use std::fmt;

/// The digest of everything that a reply depends on, tenant included; computed by `dialect`.
///
/// ```
/// let key = response_cache::CacheKey([0xab; 32]);
/// assert_eq!(key.to_string(), "ab".repeat(32));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey(pub [u8; 32]);

/// 64 hex digits, as in stores.
impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl CacheKey {
    /// Returns whether a text has the form of a stored key: other names do not belong to this
    /// cache.
    pub(crate) fn is_hex(text: &str) -> bool {
        text.len() == 64
            && text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_well_formed_name_parses_as_a_key() {
        let hex = CacheKey([7; 32]).to_string();
        assert!(CacheKey::is_hex(&hex));
        for other in [
            "",
            &hex[1..],
            &hex.replace('7', "A"),
            &format!("{hex}0"),
            &hex.replace('7', "g"),
        ] {
            assert!(!CacheKey::is_hex(other), "{other}");
        }
    }
}
