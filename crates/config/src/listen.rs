//! Where a listener is bound.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

/// An address to listen at. Host names are not looked up (`localhost` excepted): an address is what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenSetting {
    /// `127.0.0.1:8080`, `[::1]:8080`; port 0 = chosen by the system.
    Tcp(SocketAddr),
    /// `unix:/run/warmroute.sock`.
    Unix(PathBuf),
}

/// The text is not an address to listen at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenSettingError;

impl ListenSetting {
    /// Whether only this machine can reach it.
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
