//! The address of a NATS server.

use std::{fmt, str::FromStr, sync::Arc};

use net::{Address, WorkerUrl, WorkerUrlError};

/// Default port of NATS servers.
const PORT: u16 = 4222;

/// A NATS server: `nats://host:port`, or `tls://host:port` where the connection must be encrypted.
///
/// ```
/// let server: nats_client::NatsServer = "tls://bus.example:4443".parse()?;
/// assert!(server.is_tls());
/// assert_eq!("nats://bus".parse::<nats_client::NatsServer>()?.to_string(), "nats://bus:4222");
/// # Ok::<(), nats_client::NatsServerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsServer {
    /// Shared, since every error of a connection names the server.
    url: Arc<WorkerUrl>,
    tls: bool,
}

/// Why a text is not a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NatsServerError {
    /// Another scheme, or none.
    #[error("nats url has the scheme {scheme:?}: use nats or tls, as in nats://host:4222")]
    Scheme {
        /// The text before `://`; empty without one.
        scheme: String,
    },
    /// A path behind the port.
    #[error(
        "nats url has the path {path:?}: give only scheme, host and port here, as in nats://host:4222"
    )]
    Path {
        /// The path.
        path: String,
    },
    /// Any other error in the server.
    #[error("nats url: {0}")]
    Url(#[from] WorkerUrlError),
}

impl NatsServer {
    /// Returns whether the connection must be encrypted.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Returns the host and port.
    pub fn address(&self) -> Address {
        self.url.address()
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls { "tls" } else { "nats" }
    }
}

impl fmt::Display for NatsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.address())
    }
}

impl FromStr for NatsServer {
    type Err = NatsServerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Without a scheme, the text before a colon may be a password, so it is not repeated.
        let (scheme, address) = text.split_once("://").unwrap_or(("", text));
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "nats" => false,
            "tls" => true,
            other => {
                return Err(NatsServerError::Scheme {
                    scheme: other.chars().take(20).collect(),
                });
            }
        };
        let address = address.strip_suffix('/').unwrap_or(address);
        if let Some((_, path)) = address.split_once('/') {
            return Err(NatsServerError::Path {
                path: path.chars().take(80).collect(),
            });
        }
        let after_brackets = address.rsplit(']').next().unwrap_or(address);
        let port = if after_brackets.contains(':') {
            String::new()
        } else {
            format!(":{PORT}")
        };
        // Uses the one strict parser of hosts and ports for connection targets.
        Ok(Self {
            url: Arc::new(format!("http://{address}{port}").parse()?),
            tls,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_scheme_a_host_and_a_port() {
        for (text, url, tls) in [
            ("nats://bus:4333/", "nats://bus:4333", false),
            ("nats://bus", "nats://bus:4222", false),
            ("TLS://[::1]", "tls://[::1]:4222", true),
        ] {
            let server: NatsServer = text.parse().unwrap();
            assert_eq!((server.to_string(), server.is_tls()), (url.to_owned(), tls));
        }
        let error = "nats://bus/kv".parse::<NatsServer>().unwrap_err();
        assert!(error.to_string().contains("only scheme, host and port"));
    }
}
