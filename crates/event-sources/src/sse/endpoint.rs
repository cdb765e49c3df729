//! The address of an event stream over HTTP.

use std::{fmt, str::FromStr};

use net::{Address, WorkerUrl, WorkerUrlError};

/// Transport of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventTransport {
    /// Server-sent events, the reply to a GET.
    Sse,
    /// A WebSocket: one JSON object in each text message.
    WebSocket,
}

/// The URL of a stream: `http`, `https`, `ws` or `wss`, host, port, path and maybe a query.
///
/// ```
/// use event_sources::{EventTransport, SseEndpoint};
///
/// let endpoint: SseEndpoint = "https://gpu-1:9443/v1/kv_events?worker=w1".parse()?;
/// assert_eq!((endpoint.carrier(), endpoint.is_tls()), (EventTransport::Sse, true));
/// assert_eq!(endpoint.to_string(), "https://gpu-1:9443/v1/kv_events?worker=w1");
/// assert!("ftp://gpu-1/v1/kv_events".parse::<SseEndpoint>().is_err());
/// # Ok::<(), event_sources::SseEndpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEndpoint {
    url: WorkerUrl,
    query: Option<String>,
    carrier: EventTransport,
    tls: bool,
}

/// Why a text is not such a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseEndpointError {
    /// Another scheme, or none.
    #[error(
        "event source endpoint has the scheme {scheme:?}: use http, https, ws or wss, as in http://host:port/v1/kv_events"
    )]
    Scheme {
        /// The text before `://`; empty without one.
        scheme: String,
    },
    /// A query with unsupported characters.
    #[error("event source endpoint has the query {query:?}: use visible ascii without # or quotes")]
    Query {
        /// The text behind the question mark.
        query: String,
    },
    /// Any other error in the URL.
    #[error("event source endpoint: {0}")]
    Url(#[from] WorkerUrlError),
}

impl SseEndpoint {
    /// Returns the transport of the events.
    pub fn carrier(&self) -> EventTransport {
        self.carrier
    }

    /// Returns whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Returns whether each connection begins with the full current state, which replaces all
    /// earlier state.
    pub fn sends_snapshot(&self) -> bool {
        self.query
            .iter()
            .flat_map(|query| query.split('&'))
            .any(|part| part == "snapshot=true")
    }

    pub(crate) fn address(&self) -> Address {
        self.url.address()
    }

    /// Returns the name that the server's certificate must be for.
    pub(crate) fn host(&self) -> &str {
        // Only TCP schemes are accepted, so there is always a host.
        self.url.host().unwrap_or_default()
    }

    /// Returns the `Host` header: host and port.
    pub fn authority(&self) -> String {
        self.url.authority()
    }

    /// Returns path and query, as in the request line.
    pub(crate) fn target(&self) -> String {
        let path = if self.url.base().is_empty() {
            "/"
        } else {
            self.url.base()
        };
        match &self.query {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        }
    }

    fn scheme(&self) -> &'static str {
        match (self.carrier, self.tls) {
            (EventTransport::Sse, false) => "http",
            (EventTransport::Sse, true) => "https",
            (EventTransport::WebSocket, false) => "ws",
            (EventTransport::WebSocket, true) => "wss",
        }
    }
}

impl fmt::Display for SseEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}{}",
            self.scheme(),
            self.authority(),
            self.target()
        )
    }
}

impl FromStr for SseEndpoint {
    type Err = SseEndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Without a scheme, the text before a colon may be a password, so it is not repeated.
        let (scheme, rest) = text.split_once("://").ok_or(SseEndpointError::Scheme {
            scheme: String::new(),
        })?;
        let (carrier, tls) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (EventTransport::Sse, false),
            "https" => (EventTransport::Sse, true),
            "ws" => (EventTransport::WebSocket, false),
            "wss" => (EventTransport::WebSocket, true),
            other => {
                return Err(SseEndpointError::Scheme {
                    scheme: other.chars().take(20).collect(),
                });
            }
        };
        let (location, query) = match rest.split_once('?') {
            Some((location, query)) => (location, Some(plain(query)?)),
            None => (rest, None),
        };
        let (authority, path) = location
            .find('/')
            .map_or((location, ""), |at| location.split_at(at));
        let after_brackets = authority.rsplit(']').next().unwrap_or(authority);
        let port = if tls && !after_brackets.contains(':') {
            ":443"
        } else {
            ""
        };
        // Uses the one strict parser of host, port and path for connection targets.
        let url = format!("http://{authority}{port}{path}").parse()?;
        Ok(Self {
            url,
            query,
            carrier,
            tls,
        })
    }
}

fn plain(query: &str) -> Result<String, SseEndpointError> {
    let is_plain =
        |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'#' | b'"' | b'\\' | b'<' | b'>');
    if query.bytes().all(is_plain) {
        Ok(query.to_owned())
    } else {
        Err(SseEndpointError::Query {
            query: query.chars().take(80).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn read(text: &str) -> SseEndpoint {
        text.parse().unwrap()
    }

    #[test]
    #[contract("CK42")]
    fn only_http_https_ws_and_wss_urls_parse() {
        for (text, carrier, tls, port) in [
            ("http://a/v1/kv_events", EventTransport::Sse, false, 80),
            ("https://a/v1/kv_events", EventTransport::Sse, true, 443),
            ("ws://a/v1/kv_events", EventTransport::WebSocket, false, 80),
            (
                "wss://[::1]/v1/kv_events",
                EventTransport::WebSocket,
                true,
                443,
            ),
            (
                "WSS://a:8443/v1/kv_events",
                EventTransport::WebSocket,
                true,
                8443,
            ),
        ] {
            let endpoint = read(text);
            assert_eq!(
                (endpoint.carrier(), endpoint.is_tls()),
                (carrier, tls),
                "{text}"
            );
            assert!(
                matches!(endpoint.address(), Address::Tcp { port: found, .. } if found == port),
                "{text}"
            );
        }
        for text in [
            "tcp://a:1",
            "ftp://a/x",
            "unix:///run/a.sock",
            "a:8000/v1/kv_events",
            "",
            "file:///etc/passwd",
        ] {
            let error = text.parse::<SseEndpoint>().unwrap_err().to_string();
            assert!(error.contains("http, https, ws or wss"), "{text}: {error}");
        }
    }

    #[test]
    fn path_and_query_are_requested_as_written() {
        assert_eq!(
            read("http://a:1/v1/kv_events?worker=w1&x=%20").target(),
            "/v1/kv_events?worker=w1&x=%20"
        );
        assert_eq!(read("http://a:1").target(), "/");
        assert!(read("http://a:1/e?x=1&snapshot=true").sends_snapshot());
        assert!(!read("http://a:1/e?snapshot=false").sends_snapshot());
    }

    #[test]
    fn ambiguous_urls_are_refused_and_passwords_are_not_quoted() {
        for text in [
            "http://user:geheim@a/x",
            "https://user:geheim@a/x",
            "user:geheim@a",
        ] {
            let error = text.parse::<SseEndpoint>().unwrap_err().to_string();
            assert!(!error.contains("geheim"), "{error}");
        }
        for text in [
            "http://a/x?a b",
            "http://a/x?a#b",
            "http://0x7f.1/x",
            "http://a:0/x",
            "https:///x",
            "http://a/../x",
        ] {
            assert!(text.parse::<SseEndpoint>().is_err(), "{text}");
        }
    }
}
