//! The address of a stream over NATS: a server and a subject.

use std::{fmt, str::FromStr};

use nats_client::{NatsServer, NatsServerError};

/// Longest subject, bytes.
const MAX_SUBJECT: usize = 256;

/// A subject: tokens of letters, digits, `-` and `_` with dots between them, and no wildcards.
///
/// ```
/// use event_sources::NatsSubject;
///
/// assert!("kv.pool-a.engine_0".parse::<NatsSubject>().is_ok());
/// assert!("kv.*".parse::<NatsSubject>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsSubject(String);

/// A server and the subject there: `nats://host:port/SUBJECT`, or with `tls://`.
///
/// ```
/// let endpoint: event_sources::NatsEndpoint = "nats://bus:4222/kv.engine-0".parse()?;
/// assert_eq!(endpoint.subject().as_str(), "kv.engine-0");
/// assert_eq!(endpoint.to_string(), "nats://bus:4222/kv.engine-0");
/// # Ok::<(), event_sources::NatsEndpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsEndpoint {
    server: NatsServer,
    subject: NatsSubject,
}

/// Why a text is not a subject or endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NatsEndpointError {
    /// An invalid server.
    #[error(transparent)]
    Server(#[from] NatsServerError),
    /// An endpoint without a subject behind the port.
    #[error(
        "nats endpoint names no subject: add it behind the server, as in nats://host:4222/kv.engine-0"
    )]
    NoSubject,
    /// An invalid subject.
    #[error(
        "nats subject {subject:?} {trouble}: use up to 256 letters, digits, - and _ with dots between, as in kv.engine-0"
    )]
    Subject {
        /// The beginning of the subject.
        subject: String,
        /// The problem.
        trouble: &'static str,
    },
}

impl NatsSubject {
    /// Returns the subject as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the subject of replay requests.
    pub(crate) fn replay(&self) -> String {
        format!("{}.replay", self.0)
    }
}

impl fmt::Display for NatsSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NatsSubject {
    type Err = NatsEndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let trouble = if text.len() > MAX_SUBJECT {
            "is too long"
        } else if text.contains(['*', '>']) {
            "has a wildcard, and a stream is one subject"
        } else if !text.bytes().all(is_plain) {
            "has a character that is not allowed"
        } else if text.split('.').any(str::is_empty) {
            "has an empty part"
        } else {
            return Ok(Self(text.to_owned()));
        };
        Err(NatsEndpointError::Subject {
            subject: text.chars().take(80).collect(),
            trouble,
        })
    }
}

impl NatsEndpoint {
    /// Combines a server and a subject.
    pub fn new(server: NatsServer, subject: NatsSubject) -> Self {
        Self { server, subject }
    }

    /// Returns the server.
    pub fn server(&self) -> &NatsServer {
        &self.server
    }

    /// Returns the subject.
    pub fn subject(&self) -> &NatsSubject {
        &self.subject
    }
}

impl fmt::Display for NatsEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.subject)
    }
}

impl FromStr for NatsEndpoint {
    type Err = NatsEndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let host = text.find("://").map_or(0, |at| at + 3);
        let (server, subject) = match text[host..].find('/') {
            Some(at) => (&text[..host + at], &text[host + at + 1..]),
            None => (text, ""),
        };
        let server = server.parse()?;
        if subject.is_empty() {
            return Err(NatsEndpointError::NoSubject);
        }
        Ok(Self {
            server,
            subject: subject.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_error(text: &str) -> String {
        text.parse::<NatsEndpoint>().unwrap_err().to_string()
    }

    #[test]
    fn nats_and_tls_urls_parse_with_and_without_a_port() {
        for (text, url, tls) in [
            ("nats://bus:4333/kv.a", "nats://bus:4333/kv.a", false),
            ("nats://bus/kv.a", "nats://bus:4222/kv.a", false),
            ("TLS://[::1]/kv.a", "tls://[::1]:4222/kv.a", true),
            ("tls://[::1]:4333/kv_b-1", "tls://[::1]:4333/kv_b-1", true),
        ] {
            let endpoint: NatsEndpoint = text.parse().unwrap();
            assert_eq!(
                (endpoint.to_string(), endpoint.server().is_tls()),
                (url.to_owned(), tls)
            );
        }
        assert_eq!(
            "nats://bus:4333/"
                .parse::<NatsServer>()
                .unwrap()
                .to_string(),
            "nats://bus:4333"
        );
    }

    #[test]
    fn an_error_names_the_fault_and_the_expected_form() {
        for (text, message) in [
            ("http://bus:4222/kv.a", "use nats or tls"),
            ("bus:4222/kv.a", "use nats or tls"),
            ("", "use nats or tls"),
            ("nats://bus:4222", "names no subject"),
            ("nats://bus:4222/", "names no subject"),
            ("nats:///kv.a", "host"),
            ("nats://bus:0/kv.a", "port"),
            ("nats://bus:4222/kv.*", "wildcard"),
            ("nats://bus:4222/kv.>", "wildcard"),
            ("nats://bus:4222/kv..a", "empty part"),
            ("nats://bus:4222/.kv", "empty part"),
            ("nats://bus:4222/kv a", "not allowed"),
            ("nats://bus:4222/kv\r\nPUB x 0", "not allowed"),
            ("nats://bus:4222/kv/a", "not allowed"),
            ("nats://bus:4222/kv?x=1", "not allowed"),
        ] {
            assert!(
                parse_error(text).contains(message),
                "{text}: {}",
                parse_error(text)
            );
        }
        assert!(parse_error(&format!("nats://bus:4222/{}", "a".repeat(257))).contains("too long"));
        assert!(
            format!("nats://bus:4222/{}", "a".repeat(256))
                .parse::<NatsEndpoint>()
                .is_ok()
        );
        assert!(
            "nats://bus:4222/kv"
                .parse::<NatsServer>()
                .unwrap_err()
                .to_string()
                .contains("only scheme, host and port")
        );
    }

    #[test]
    fn passwords_are_refused_and_not_quoted() {
        for text in [
            "nats://user:geheim@bus:4222/kv.a",
            "user:geheim@bus/kv.a",
            "geheim://bus/kv",
        ] {
            let message = parse_error(text);
            assert!(
                !message.contains("geheim") || text.starts_with("geheim://"),
                "{message}"
            );
        }
    }
}
