//! The entries of `replicas.peers`: URLs of admin listeners, or names whose addresses are peers.

use std::{fmt, io, str::FromStr};

use net::{WorkerUrl, WorkerUrlError};

/// Most addresses of one name.
const MOST: usize = 128;

/// An entry of `replicas.peers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerAddress {
    /// One admin listener.
    Url(WorkerUrl),
    /// Every address of a name, over HTTP.
    Name {
        /// The name.
        host: String,
        /// The port of the admin listeners.
        port: u16,
    },
}

/// Why an entry cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PeerAddressError {
    /// It is no URL.
    #[error(transparent)]
    Url(#[from] WorkerUrlError),
    /// It is no name with a port.
    #[error("{0:?} is no name with a port: write dns:NAME:PORT, or the URL of an admin listener")]
    Name(String),
}

impl FromStr for PeerAddress {
    type Err = PeerAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(name) = text.strip_prefix("dns:") else {
            return Ok(Self::Url(text.parse()?));
        };
        let parts = name
            .rsplit_once(':')
            .filter(|(host, _)| !host.is_empty() && !host.contains([':', '/']));
        let host_and_port = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = host_and_port.ok_or_else(|| PeerAddressError::Name(text.to_owned()))?;
        let host = host.to_owned();
        Ok(Self::Name { host, port })
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => url.fmt(f),
            Self::Name { host, port } => write!(f, "dns:{host}:{port}"),
        }
    }
}

impl PeerAddress {
    /// Returns the admin listeners that it stands for now.
    pub(crate) async fn resolve(&self) -> io::Result<Vec<WorkerUrl>> {
        let (host, port) = match self {
            Self::Url(url) => return Ok(vec![url.clone()]),
            Self::Name { host, port } => (host, *port),
        };
        let mut found = net::dns::system_addresses(host, port).await?;
        found.truncate(MOST);
        let urls = found
            .into_iter()
            .filter_map(|address| format!("http://{address}").parse().ok());
        Ok(urls.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_url_or_a_name_with_a_port() {
        for text in [
            "http://10.0.0.1:9191",
            "https://router-2:9191",
            "dns:routers.example:9191",
        ] {
            assert_eq!(text.parse::<PeerAddress>().expect(text).to_string(), text);
        }
        for text in [
            "dns:routers",
            "dns::9191",
            "dns:http://routers:9191",
            "dns:routers:0x9",
            "ftp://a",
        ] {
            assert!(text.parse::<PeerAddress>().is_err(), "{text}");
        }
    }
}
