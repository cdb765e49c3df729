//! The URL of a worker: one strict parser, used for checking and for connecting.
//!
//! URL parsers disagree about unusual spellings (user names, backslashes, `0x7f.1`), and every
//! disagreement between the parser that checks and the parser that connects is a way around the
//! check. So this one accepts only texts with a single reading, and refuses the rest with the
//! spelling to use.
//!
//! Not here: which destinations are allowed. This module defines the meaning of a text, not whether
//! to connect.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    str::FromStr,
};

use crate::{Address, Destinations, TrustRoots};

/// A worker's base URL: `http://host[:port][/base/path]`, the same with `https`, or
/// `unix:///absolute/path.sock`.
///
/// It may carry trust roots ([`WorkerUrl::with_trust`]); they are no part of its identity, and two
/// URLs of one text are equal.
///
/// ```
/// let url: net::WorkerUrl = "http://10.0.0.5:8000/engine/".parse()?;
/// assert_eq!(url.display_name(), "10.0.0.5:8000");
/// assert_eq!(url.path("/v1/models"), "/engine/v1/models");
/// # Ok::<(), net::WorkerUrlError>(())
/// ```
#[derive(Clone, Debug)]
pub struct WorkerUrl {
    address: Address,
    base: String,
    tls: bool,
    trust: Option<TrustRoots>,
    only: Destinations,
}

impl PartialEq for WorkerUrl {
    fn eq(&self, other: &Self) -> bool {
        (&self.address, &self.base, self.tls) == (&other.address, &other.base, other.tls)
    }
}

impl Eq for WorkerUrl {}

/// The reason why a text is no worker URL. The text itself is shown only where it cannot carry a
/// password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerUrlError {
    /// No scheme at all.
    #[error(
        "worker url {url:?} has no scheme: write http://host:port, https://host:port or unix:///path.sock"
    )]
    NoScheme {
        /// The text.
        url: String,
    },
    /// An unsupported scheme.
    #[error("worker url scheme {scheme:?} is not supported: use http://, https:// or unix://")]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// A user name or password.
    #[error(
        "a worker url must not carry a user name or password: give the key as api_key and write http://host:port"
    )]
    UserInfo,
    /// `?` or `#`.
    #[error("worker url {url:?} has a {part}: give only scheme, host, port and base path")]
    Extra {
        /// The text before the part.
        url: String,
        /// "query" or "fragment".
        part: &'static str,
    },
    /// A character that URL parsers disagree about.
    #[error(
        "worker url has the character {character:?}: use plain ascii without spaces, tabs or backslashes"
    )]
    Character {
        /// The character.
        character: char,
    },
    /// Not a host name or address in its usual spelling.
    #[error("worker url host {host:?} {problem}")]
    Host {
        /// The host as written.
        host: String,
        /// The problem and the correct spelling.
        problem: &'static str,
    },
    /// Not a port.
    #[error("worker url port {port:?} is not a number from 1 to 65535: write http://host:port")]
    Port {
        /// The port as written.
        port: String,
    },
    /// A base path with `..` or the like.
    #[error(
        "worker url path {path:?} is not plain: use segments without . or .., empty segments or %-escapes"
    )]
    Path {
        /// The path as written.
        path: String,
    },
    /// `unix://` without an absolute path.
    #[error("worker url {url:?} needs an absolute path: write unix:///path/to/engine.sock")]
    RelativeSocket {
        /// The text.
        url: String,
    },
}

impl WorkerUrl {
    /// Returns the address to connect to.
    pub fn address(&self) -> Address {
        self.address.clone()
    }

    /// Returns the URL without its base path, and that path, `/` at least: for a service that is one
    /// URL and not what lies below it.
    #[must_use]
    pub fn into_origin(self) -> (Self, String) {
        let path = match &*self.base {
            "" => "/".to_owned(),
            base => base.to_owned(),
        };
        let base = String::new();
        (Self { base, ..self }, path)
    }

    /// Sets the trust roots for an encrypted URL; without, the machine's own apply.
    #[must_use]
    pub fn with_trust(self, trust: TrustRoots) -> Self {
        Self {
            trust: Some(trust),
            ..self
        }
    }

    /// Restricts the URL to these addresses, whatever its name resolves to at connect time.
    #[must_use]
    pub fn only_at(self, only: Destinations) -> Self {
        Self { only, ..self }
    }

    /// Returns the permitted addresses.
    pub fn destinations(&self) -> Destinations {
        self.only.clone()
    }

    /// Returns whether connections are encrypted.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    pub(crate) fn trust(&self) -> Option<&TrustRoots> {
        self.trust.as_ref()
    }

    /// Returns the host without brackets; `None` for a unix socket.
    pub fn host(&self) -> Option<&str> {
        match &self.address {
            Address::Tcp { host, .. } => Some(host),
            Address::Unix(_) => None,
        }
    }

    /// Returns whether the worker is on this machine by its spelling: a unix socket, `localhost` or
    /// a loopback address. No name is resolved.
    pub fn is_loopback(&self) -> bool {
        self.host().is_none_or(|host| {
            host.eq_ignore_ascii_case("localhost")
                || host
                    .parse()
                    .is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
        })
    }

    /// Returns the display form for messages: `host:port`, or `unix:/path`.
    pub fn display_name(&self) -> String {
        self.address.to_string()
    }

    /// Returns the name of a worker without a configured one: `host:port`, or `unix:` and the path
    /// with `-` for `/`, since `/` has its own meaning after a worker's name.
    ///
    /// ```
    /// let url: net::WorkerUrl = "unix:///run/vllm/0.sock".parse()?;
    /// assert_eq!(url.worker_name(), "unix:run-vllm-0.sock");
    /// # Ok::<(), net::WorkerUrlError>(())
    /// ```
    pub fn worker_name(&self) -> String {
        match &self.address {
            Address::Tcp { .. } => self.address.to_string(),
            Address::Unix(path) => {
                format!(
                    "unix:{}",
                    path.to_string_lossy()
                        .trim_start_matches('/')
                        .replace('/', "-")
                )
            }
        }
    }

    /// Returns the value of the `Host` header: `host:port`, and `localhost` behind a unix socket.
    pub fn authority(&self) -> String {
        match &self.address {
            Address::Tcp { .. } => self.address.to_string(),
            Address::Unix(_) => "localhost".to_owned(),
        }
    }

    /// Returns the base path: empty, or with a leading and without a trailing slash.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Returns the request target for `path` (with its query, if any): the base path in front of
    /// it.
    pub fn path(&self, path: &str) -> String {
        if path.starts_with('/') {
            format!("{}{path}", self.base)
        } else {
            format!("{}/{path}", self.base)
        }
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp { .. } => {
                let scheme = if self.tls { "https" } else { "http" };
                write!(f, "{scheme}://{}{}", self.address, self.base)
            }
            Address::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl FromStr for WorkerUrl {
    type Err = WorkerUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(character) = text.chars().find(|c| !c.is_ascii_graphic() || *c == '\\') {
            return Err(WorkerUrlError::Character { character });
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(match text.split_once(':') {
                // `user:password@host` has no scheme either; the part before the colon may be a
                // secret.
                _ if text.contains('@') => WorkerUrlError::UserInfo,
                Some((scheme, _)) if is_other_scheme(scheme) => WorkerUrlError::Scheme {
                    scheme: scheme.to_owned(),
                },
                _ => WorkerUrlError::NoScheme {
                    url: text.to_owned(),
                },
            });
        };
        if let Some(authority) = rest.split(['/', '?', '#']).next()
            && authority.contains('@')
        {
            return Err(WorkerUrlError::UserInfo);
        }
        for (mark, part) in [('#', "fragment"), ('?', "query")] {
            if let Some((before, _)) = rest.split_once(mark) {
                return Err(WorkerUrlError::Extra {
                    url: format!("{scheme}://{before}"),
                    part,
                });
            }
        }
        match scheme.to_ascii_lowercase().as_str() {
            "http" => http(rest, Tls::Without),
            "https" => http(rest, Tls::With),
            "unix" if rest.starts_with('/') && rest.len() > 1 && !rest.ends_with('/') => Ok(Self {
                address: Address::Unix(PathBuf::from(rest)),
                base: String::new(),
                tls: false,
                trust: None,
                only: Destinations::Any,
            }),
            "unix" => Err(WorkerUrlError::RelativeSocket {
                url: text.to_owned(),
            }),
            _ => Err(WorkerUrlError::Scheme {
                scheme: scheme.to_owned(),
            }),
        }
    }
}

/// Returns whether the word is another scheme. `host:8000` looks like a scheme, too; a scheme is
/// assumed only where the rest is no port.
fn is_other_scheme(word: &str) -> bool {
    [
        "file",
        "data",
        "javascript",
        "http",
        "https",
        "unix",
        "mailto",
    ]
    .contains(&word.to_ascii_lowercase().as_str())
}

/// Whether connections are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tls {
    With,
    Without,
}

fn http(rest: &str, tls: Tls) -> Result<WorkerUrl, WorkerUrlError> {
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let (host, port) = split_port(authority)?;
    let host = check_host(host)?;
    let port = match port {
        None if tls == Tls::With => 443,
        None => 80,
        Some(text) => parse_port(text)?,
    };
    Ok(WorkerUrl {
        address: Address::Tcp { host, port },
        base: check_path(path)?,
        tls: tls == Tls::With,
        trust: None,
        only: Destinations::Any,
    })
}

pub(crate) fn split_port(authority: &str) -> Result<(&str, Option<&str>), WorkerUrlError> {
    let Some(inner) = authority.strip_prefix('[') else {
        return Ok(match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        });
    };
    let Some((_, after)) = inner.split_once(']') else {
        return Err(WorkerUrlError::Host {
            host: authority.to_owned(),
            problem: "lacks its closing bracket",
        });
    };
    let host = &authority[..authority.len() - after.len()];
    match (after, after.strip_prefix(':')) {
        ("", _) => Ok((host, None)),
        (_, Some(port)) => Ok((host, Some(port))),
        (_, None) => Err(WorkerUrlError::Host {
            host: authority.to_owned(),
            problem: "has text after its closing bracket",
        }),
    }
}

pub(crate) fn parse_port(text: &str) -> Result<u16, WorkerUrlError> {
    let wrong = || WorkerUrlError::Port {
        port: text.to_owned(),
    };
    // `parse` alone would take "+80".
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    text.parse()
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(wrong)
}

pub(crate) fn check_host(host: &str) -> Result<String, WorkerUrlError> {
    let refuse = |problem| {
        Err(WorkerUrlError::Host {
            host: host.to_owned(),
            problem,
        })
    };
    if let Some(inner) = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        if inner.contains('%') {
            return refuse("has a zone: use an address without one");
        }
        return match inner.parse::<Ipv6Addr>() {
            Ok(address) => Ok(address.to_string()),
            Err(_) => refuse("is not an ipv6 address: write it as [::1]"),
        };
    }
    if host.is_empty() {
        return refuse("is empty: write http://host:port");
    }
    if host.contains('%') {
        return refuse("is percent-encoded: write it plainly");
    }
    if host.ends_with('.') {
        return refuse("ends with a dot: leave the dot out");
    }
    let label_is_plain = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if host.len() > 253 || !host.split('.').all(label_is_plain) {
        return refuse(
            "is not a host name: use letters, digits, hyphens and dots, or an ip address",
        );
    }
    // Resolvers read a name whose last label is a number as an address, in octal, hex or with parts
    // left out.
    let last = host.rsplit('.').next().unwrap_or(host);
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let numeric = last.bytes().all(|b| b.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    if numeric && host.parse::<Ipv4Addr>().is_err() {
        return refuse(
            "is an unusual spelling of an ipv4 address: write four decimal numbers, as in 127.0.0.1",
        );
    }
    Ok(host.to_ascii_lowercase())
}

fn check_path(path: &str) -> Result<String, WorkerUrlError> {
    let base = path.strip_suffix('/').unwrap_or(path);
    if base.is_empty() {
        return Ok(String::new());
    }
    let plain_byte = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&b);
    let plain =
        |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(plain_byte);
    if base.split('/').skip(1).all(plain) {
        Ok(base.to_owned())
    } else {
        Err(WorkerUrlError::Path {
            path: path.to_owned(),
        })
    }
}
