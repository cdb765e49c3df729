//! Endpoint texts: `tcp://host:port` and `ipc://path`.

use std::{fmt, net::Ipv6Addr, path::PathBuf, str::FromStr};

use net::{Address, ListenAddr};

/// The address where a ZeroMQ socket binds or connects.
///
/// ```
/// let published: zmtp::Endpoint = "tcp://*:5557".parse()?;
/// assert!(published.is_wildcard());
/// assert_eq!(published.with_host("10.0.0.5").to_string(), "tcp://10.0.0.5:5557");
/// # Ok::<(), zmtp::EndpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `tcp://host:port`; the host may be `*` for a bind.
    Tcp {
        /// Name, IP address without brackets, or `*`.
        host: String,
        /// Port; 0 lets the system choose for a bind.
        port: u16,
    },
    /// `ipc://path`: a unix socket.
    Ipc(PathBuf),
}

/// The reason why a text is no endpoint, or an endpoint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// A transport other than tcp and ipc.
    #[error("endpoint {text:?} has no supported transport: write tcp://host:port or ipc:///path")]
    Transport {
        /// The text.
        text: String,
    },
    /// Not `host:port`.
    #[error(
        "endpoint {text:?} is not host and port: write tcp://host:port, for example tcp://10.0.0.5:5557"
    )]
    HostPort {
        /// The text.
        text: String,
    },
    /// No path, a relative one, or an abstract name.
    #[error(
        "endpoint {text:?} is not a path: write ipc:///absolute/path (abstract names are not supported)"
    )]
    Path {
        /// The text.
        text: String,
    },
    /// A wildcard or port 0 where a destination is needed.
    #[error(
        "endpoint {text:?} says where to listen, not where to connect: put the engine's host and port in it"
    )]
    NotADestination {
        /// The endpoint.
        text: String,
    },
}

impl Endpoint {
    /// Returns whether it means "every address of this machine", so that it names no host to
    /// connect to.
    pub fn is_wildcard(&self) -> bool {
        matches!(self, Self::Tcp { host, .. } if matches!(host.as_str(), "*" | "0.0.0.0" | "::"))
    }

    /// Returns the same port at another host; an `ipc` endpoint stays as it is.
    #[must_use]
    pub fn with_host(self, host: &str) -> Self {
        match self {
            Self::Tcp { port, .. } => Self::Tcp {
                host: host.to_owned(),
                port,
            },
            ipc @ Self::Ipc(_) => ipc,
        }
    }

    /// Returns the port; `None` for `ipc`.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp { port, .. } => Some(*port),
            Self::Ipc(_) => None,
        }
    }

    /// Returns the address to connect to.
    ///
    /// # Errors
    ///
    /// A wildcard or port 0 is only valid for listening: [`EndpointError::NotADestination`].
    pub fn to_address(&self) -> Result<Address, EndpointError> {
        match self {
            Self::Tcp { port: 0, .. } => Err(EndpointError::NotADestination {
                text: self.to_string(),
            }),
            _ if self.is_wildcard() => Err(EndpointError::NotADestination {
                text: self.to_string(),
            }),
            Self::Tcp { host, port } => Ok(Address::Tcp {
                host: host.clone(),
                port: *port,
            }),
            Self::Ipc(path) => Ok(Address::Unix(path.clone())),
        }
    }

    pub(crate) fn to_listen_addr(&self) -> ListenAddr {
        match self {
            Self::Tcp { host, port } if host == "*" => ListenAddr::tcp("0.0.0.0", *port),
            Self::Tcp { host, port } => ListenAddr::tcp(host, *port),
            Self::Ipc(path) => ListenAddr::unix(path),
        }
        .chosen_by("the endpoint's port")
    }
}

impl From<&Address> for Endpoint {
    fn from(address: &Address) -> Self {
        match address {
            Address::Tcp { host, port } => Self::Tcp {
                host: host.clone(),
                port: *port,
            },
            Address::Unix(path) => Self::Ipc(path.clone()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("ipc://") {
            let good = path.starts_with('/') && path.len() > 1 && !path.contains('\0');
            return if good {
                Ok(Self::Ipc(path.into()))
            } else {
                Err(EndpointError::Path {
                    text: text.to_owned(),
                })
            };
        }
        let Some(rest) = text.strip_prefix("tcp://") else {
            return Err(EndpointError::Transport {
                text: text.to_owned(),
            });
        };
        host_port(rest).ok_or_else(|| EndpointError::HostPort {
            text: text.to_owned(),
        })
    }
}

fn host_port(rest: &str) -> Option<Endpoint> {
    let (host, port) = rest.rsplit_once(':')?;
    let port = match port {
        "*" => 0,
        digits if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().ok()?,
        _ => return None,
    };
    let host = match host.strip_prefix('[') {
        Some(inner) => inner
            .strip_suffix(']')?
            .parse::<Ipv6Addr>()
            .ok()?
            .to_string(),
        // Python publishers write "tcp://:::5557" for every address of both families.
        None if host == "::" => host.to_owned(),
        None => {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
            (host == "*" || !host.is_empty() && host.bytes().all(plain)).then(|| host.to_owned())?
        }
    };
    Some(Endpoint::Tcp { host, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_survive_a_round_trip() {
        for text in [
            "tcp://*:5557",
            "tcp://127.0.0.1:0",
            "tcp://[::1]:5557",
            "tcp://engine-0.pool:65535",
            "ipc:///run/kv.sock",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_malformed_endpoint_is_refused_with_an_example() {
        for text in [
            "",
            "5557",
            "tcp://",
            "tcp://host",
            "tcp://:5557",
            "tcp://host:+1",
            "tcp://host:65536",
            "tcp://a b:1",
            "tcp://[::1:5",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains("tcp://host:port"), "{error}");
        }
        for text in ["ipc://", "ipc://relative", "ipc://@abstract"] {
            assert!(
                matches!(text.parse::<Endpoint>(), Err(EndpointError::Path { .. })),
                "{text}"
            );
        }
        assert!(matches!(
            "inproc://kv".parse::<Endpoint>(),
            Err(EndpointError::Transport { .. })
        ));
    }

    #[test]
    fn a_wildcard_is_no_destination_until_its_host_is_set() {
        for text in [
            "tcp://*:5557",
            "tcp://0.0.0.0:5557",
            "tcp://[::]:5557",
            "tcp://:::5557",
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert!(
                matches!(
                    endpoint.to_address(),
                    Err(EndpointError::NotADestination { .. })
                ),
                "{text}"
            );
            assert_eq!(
                endpoint
                    .with_host("10.0.0.5")
                    .to_address()
                    .unwrap()
                    .to_string(),
                "10.0.0.5:5557"
            );
        }
        assert!(
            "tcp://host:0"
                .parse::<Endpoint>()
                .unwrap()
                .to_address()
                .is_err()
        );
    }
}
