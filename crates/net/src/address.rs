//! Connect and listen addresses.

use std::{
    fmt,
    net::{Ipv6Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

/// A connect address. The host is a name or an address without brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP.
    Tcp {
        /// Name or IP address, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp {
            host: address.ip().to_string(),
            port: address.port(),
        }
    }
}

/// A listen address, and the flag with which an operator would change it.
///
/// ```
/// let address: net::ListenAddr = "127.0.0.1:8080".parse()?;
/// assert_eq!(address.with_port(0).to_string(), "127.0.0.1:0");
/// # Ok::<(), net::ListenAddrError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListenAddr {
    address: Address,
    flag: &'static str,
}

/// The reason why a text is no listen address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{value:?} is not a listening address: use host:port, [ipv6]:port or unix:/path, for example 127.0.0.1:8080"
)]
pub struct ListenAddrError {
    value: String,
}

impl ListenAddr {
    /// Creates a TCP address; port 0 lets the system choose.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::from(Address::Tcp {
            host: host.into(),
            port,
        })
    }

    /// Creates a unix socket address.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::from(Address::Unix(path.into()))
    }

    /// Sets the flag that the message about a taken port names (`--port` by default).
    #[must_use]
    pub fn chosen_by(mut self, flag: &'static str) -> Self {
        self.flag = flag;
        self
    }

    /// Returns the same host with another port; a unix path stays as it is.
    #[must_use]
    pub fn with_port(mut self, new: u16) -> Self {
        if let Address::Tcp { port, .. } = &mut self.address {
            *port = new;
        }
        self
    }

    /// Returns the address without the flag.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the port; `None` for a unix socket.
    pub fn port(&self) -> Option<u16> {
        match &self.address {
            Address::Tcp { port, .. } => Some(*port),
            Address::Unix(_) => None,
        }
    }

    /// Returns whether only this machine can reach it. A name counts only if it is `localhost`.
    pub fn is_loopback(&self) -> bool {
        match &self.address {
            Address::Tcp { host, .. } => {
                host == "localhost"
                    || host
                        .parse::<std::net::IpAddr>()
                        .is_ok_and(|ip| ip.is_loopback())
            }
            Address::Unix(_) => true,
        }
    }

    pub(crate) fn flag(&self) -> &'static str {
        self.flag
    }
}

impl From<Address> for ListenAddr {
    fn from(address: Address) -> Self {
        Self {
            address,
            flag: "--port",
        }
    }
}

impl From<SocketAddr> for ListenAddr {
    fn from(address: SocketAddr) -> Self {
        Self::from(Address::from(address))
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl FromStr for ListenAddr {
    type Err = ListenAddrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ListenAddrError {
            value: text.to_owned(),
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') {
                Ok(Self::unix(path))
            } else {
                Err(wrong())
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong());
        }
        let port = port.parse().map_err(|_| wrong())?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        let host = match host.strip_prefix('[') {
            Some(inner) => inner
                .strip_suffix(']')
                .filter(|v6| v6.parse::<Ipv6Addr>().is_ok())
                .ok_or_else(wrong)?,
            None if host == "*" => "0.0.0.0",
            None if !host.is_empty() && host.bytes().all(plain) => host,
            None => return Err(wrong()),
        };
        Ok(Self::tcp(host, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_addresses_survive_a_round_trip() {
        for text in [
            "127.0.0.1:8080",
            "[::1]:0",
            "localhost:65535",
            "unix:/run/warmroute.sock",
        ] {
            assert_eq!(text.parse::<ListenAddr>().unwrap().to_string(), text);
        }
        assert_eq!(
            "*:80".parse::<ListenAddr>().unwrap().to_string(),
            "0.0.0.0:80"
        );
        assert_eq!(
            "unix:///run/a.sock"
                .parse::<ListenAddr>()
                .unwrap()
                .to_string(),
            "unix:/run/a.sock"
        );
    }

    #[test]
    fn a_malformed_listening_address_is_refused_with_an_example() {
        for text in [
            "",
            "8080",
            ":8080",
            "localhost:",
            "localhost:+80",
            "::1:80",
            "[::1:80",
            "a b:1",
            "h:65536",
            "unix:x",
        ] {
            let error = text.parse::<ListenAddr>().unwrap_err().to_string();
            assert!(error.contains("127.0.0.1:8080"), "{error}");
        }
    }

    #[test]
    fn only_addresses_of_this_machine_count_as_loopback() {
        let local = |text: &str| text.parse::<ListenAddr>().unwrap().is_loopback();
        assert!(
            local("127.0.0.1:1") && local("[::1]:1") && local("localhost:1") && local("unix:/a")
        );
        assert!(!local("0.0.0.0:1") && !local("10.0.0.1:1") && !local("example.org:1"));
    }
}
