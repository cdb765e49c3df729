//! Origins of web pages.

use std::{fmt, str::FromStr};

/// The origin of web pages: `https://app.example`, `http://localhost:3000`, or `*` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebOrigin(String);

/// Error for a text that is no origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebOriginError;

impl WebOrigin {
    /// Returns whether this is the origin that a browser names.
    pub fn is(&self, origin: &[u8]) -> bool {
        self.is_any() || self.0.as_bytes().eq_ignore_ascii_case(origin)
    }

    /// Returns whether pages of this origin name `host` in `Host` when they call their own server.
    pub fn has_host(&self, host: &[u8]) -> bool {
        let own = self.0.split_once("://").map(|(_, own)| own.as_bytes());
        self.is_any() || own.is_some_and(|own| own.eq_ignore_ascii_case(host))
    }

    fn is_any(&self) -> bool {
        self.0 == "*"
    }
}

impl FromStr for WebOrigin {
    type Err = WebOriginError;

    fn from_str(text: &str) -> Result<Self, WebOriginError> {
        let is_origin = text.split_once("://").is_some_and(|(scheme, host)| {
            let of_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
            let of_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
            !scheme.is_empty()
                && scheme.bytes().all(of_scheme)
                && !host.is_empty()
                && host.bytes().all(of_host)
        });
        if is_origin || text == "*" {
            Ok(Self(text.to_owned()))
        } else {
            Err(WebOriginError)
        }
    }
}

impl fmt::Display for WebOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        let app: WebOrigin = "https://app.example:8443".parse().unwrap();
        assert!(app.is(b"https://APP.example:8443") && app.has_host(b"app.example:8443"));
        for other in ["http://app.example:8443", "https://app.example", "null", ""] {
            assert!(!app.is(other.as_bytes()), "{other}");
        }
        assert!(!app.has_host(b"app.example") && !app.has_host(b""));
        let any: WebOrigin = "*".parse().unwrap();
        assert!(any.is(b"null") && any.has_host(b"evil.test"));
        for text in [
            "",
            "app.example",
            "https://",
            "https://app.example/",
            "https://u@app.example",
            "https://*.example",
            "null",
            "://app",
        ] {
            assert_eq!(text.parse::<WebOrigin>(), Err(WebOriginError), "{text}");
        }
    }
}
