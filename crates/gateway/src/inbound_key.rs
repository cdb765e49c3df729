//! The inbound key of the data listener.

use dialect::{ApiError, ErrorCode};
use http::{HeaderMap, header::AUTHORIZATION};
use sha2::{Digest, Sha256};

/// The one inbound key, if configured. Only its digest is stored.
#[derive(Clone, Debug, Default)]
pub struct InboundKey {
    digest: Option<[u8; 32]>,
}

/// The key in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PresentedKey<'a> {
    Nothing,
    Key(&'a [u8]),
    /// Two different keys or a malformed header.
    Unclear,
}

impl<'a> PresentedKey<'a> {
    /// Reads `Authorization: Bearer KEY` or `x-api-key: KEY`.
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        let mut keys = headers
            .get_all(AUTHORIZATION)
            .iter()
            .map(|value| {
                let bytes = value.as_bytes();
                match bytes.split_at_checked(7) {
                    Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
                        key.trim_ascii()
                    }
                    _ => b"",
                }
            })
            .chain(
                headers
                    .get_all("x-api-key")
                    .iter()
                    .map(http::HeaderValue::as_bytes),
            );
        match (keys.next(), keys.next()) {
            (None, _) => Self::Nothing,
            (Some(b""), None) => Self::Unclear,
            (Some(key), None) => Self::Key(key),
            (Some(one), Some(other)) if one == other && keys.next().is_none() => Self::Key(one),
            _ => Self::Unclear,
        }
    }
}

impl InboundKey {
    /// Requires `key` of every caller.
    pub fn require(key: &str) -> Self {
        Self {
            digest: Some(Sha256::digest(key.as_bytes()).into()),
        }
    }

    /// Returns whether callers need a key at all.
    pub fn required(&self) -> bool {
        self.digest.is_some()
    }

    /// Accepts the caller or returns the error. There is no default identity.
    pub(crate) fn check(&self, presented: PresentedKey<'_>) -> Result<(), ApiError> {
        let Some(expected) = self.digest else {
            return Ok(());
        };
        match presented {
            PresentedKey::Nothing => Err(ApiError::new(
                ErrorCode::MissingApiKey,
                "no API key: send it as `Authorization: Bearer KEY`",
            )),
            // Compares digests: the time taken does not depend on how many bytes of a wrong key are
            // right.
            PresentedKey::Key(key) if <[u8; 32]>::from(Sha256::digest(key)) == expected => Ok(()),
            PresentedKey::Key(_) | PresentedKey::Unclear => Err(ApiError::new(
                ErrorCode::InvalidApiKey,
                "the API key is not valid here: check it",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use http::HeaderValue;

    use super::*;

    fn headers(fields: &[(&'static str, &'static [u8])]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        map
    }

    fn code(keys: &InboundKey, fields: &[(&'static str, &'static [u8])]) -> Option<ErrorCode> {
        keys.check(PresentedKey::of(&headers(fields)))
            .err()
            .map(|error| error.code)
    }

    #[test]
    #[contract("S6", "S8")]
    fn only_the_configured_key_is_accepted() {
        let keys = InboundKey::require("sk-1");
        assert_eq!(code(&keys, &[("authorization", b"Bearer sk-1")]), None);
        assert_eq!(code(&keys, &[("authorization", b"bearer sk-1")]), None);
        assert_eq!(code(&keys, &[("x-api-key", b"sk-1")]), None);
        assert_eq!(
            code(
                &keys,
                &[("x-api-key", b"sk-1"), ("authorization", b"Bearer sk-1")]
            ),
            None
        );
        assert_eq!(code(&keys, &[]), Some(ErrorCode::MissingApiKey));
        for wrong in [
            b"Bearer".as_slice(),
            b"Bearer ",
            b"Bearer sk-2",
            b"Basic sk-1",
            b"' OR '1'='1",
            b"Bearer \xff",
        ] {
            let map = [("authorization", wrong)];
            assert_eq!(
                code(&keys, &map),
                Some(ErrorCode::InvalidApiKey),
                "{}",
                wrong.escape_ascii()
            );
        }
        let two = [
            ("authorization", b"Bearer sk-1".as_slice()),
            ("x-api-key", b"other"),
        ];
        assert_eq!(code(&keys, &two), Some(ErrorCode::InvalidApiKey));
    }

    #[test]
    fn without_a_key_every_request_is_accepted() {
        assert_eq!(code(&InboundKey::default(), &[]), None);
    }
}
