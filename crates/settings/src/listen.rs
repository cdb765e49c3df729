//! Listen addresses.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

/// An address to listen on. Host names are not resolved (`localhost` excepted).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenSetting {
    /// `127.0.0.1:8080`, `[::1]:8080`; port 0 = chosen by the system.
    Tcp(SocketAddr),
    /// `unix:/run/warmroute.sock`.
    Unix(PathBuf),
}

/// Error for a text that is not a listen address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenSettingError;

impl ListenSetting {
    /// Returns whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for ListenSetting {
    type Err = ListenSettingError;

    fn from_str(text: &str) -> Result<Self, ListenSettingError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err(ListenSettingError)
            };
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            let port = port.parse().map_err(|_| ListenSettingError)?;
            return Ok(Self::Tcp((Ipv4Addr::LOCALHOST, port).into()));
        }
        text.parse().map(Self::Tcp).map_err(|_| ListenSettingError)
    }
}

impl fmt::Display for ListenSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
