//! Address of a Redis server.

use std::{fmt, net::Ipv6Addr, str::FromStr};

use crate::secret::Secret;

const DEFAULT_PORT: u16 = 6379;
/// Longest user or password, bytes.
const MOST_CREDENTIAL: usize = 4096;

/// `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`, or `rediss://` if encrypted. Displayed
/// without user and password.
///
/// ```
/// let url: settings::RedisUrl = "redis://:s%40fe@cache:6380/2".parse().unwrap();
/// assert_eq!((url.host(), url.port(), url.database()), ("cache", 6380, 2));
/// assert_eq!(url.password().map(settings::Secret::expose), Some("s@fe"));
/// assert_eq!(url.to_string(), "redis://***@cache:6380/2");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    tls: bool,
    user: Option<Secret>,
    password: Option<Secret>,
    host: String,
    port: u16,
    database: u32,
}

/// Error for a text that is no such URL. It does not quote the text, which may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisUrlError;

impl fmt::Display for RedisUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not the URL of a Redis server: expected redis://HOST:PORT, as in redis://127.0.0.1:6379")
    }
}

impl std::error::Error for RedisUrlError {}

impl RedisUrl {
    /// Returns whether the scheme requires an encrypted connection.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Returns the name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of the database.
    pub fn database(&self) -> u32 {
        self.database
    }

    /// Returns the user; `None` = the server's default user.
    pub fn user(&self) -> Option<&Secret> {
        self.user.as_ref()
    }

    /// Returns the password.
    pub fn password(&self) -> Option<&Secret> {
        self.password.as_ref()
    }
}

impl FromStr for RedisUrl {
    type Err = RedisUrlError;

    fn from_str(text: &str) -> Result<Self, RedisUrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(RedisUrlError)?;
        let tls = match scheme {
            "redis" => false,
            "rediss" => true,
            _ => return Err(RedisUrlError),
        };
        // The last `@`: a password may contain the character itself.
        let (credentials, address) = match rest.rsplit_once('@') {
            Some((credentials, address)) => (Some(credentials), address),
            None => (None, rest),
        };
        let (user, password) = credentials
            .map(read_credentials)
            .transpose()?
            .unwrap_or_default();
        let (authority, database) = address.split_once('/').unwrap_or((address, ""));
        let database = if database.is_empty() {
            Some(0)
        } else {
            number(database)
        };
        let (host, port) = read_authority(authority)?;
        Ok(Self {
            tls,
            user,
            password,
            host,
            port,
            database: database.ok_or(RedisUrlError)?,
        })
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "rediss://" } else { "redis://" })?;
        if self.password.is_some() {
            f.write_str("***@")?;
        }
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)?;
        } else {
            write!(f, "{}:{}", self.host, self.port)?;
        }
        if self.database == 0 {
            Ok(())
        } else {
            write!(f, "/{}", self.database)
        }
    }
}

type Credentials = (Option<Secret>, Option<Secret>);

/// Reads `USER:PASSWORD`, or one of them alone: a password without a user, but no user without a
/// password.
fn read_credentials(text: &str) -> Result<Credentials, RedisUrlError> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, password),
        // The displayed form: it can be parsed again.
        None if text == "***" => ("", text),
        None => return Err(RedisUrlError),
    };
    let secret = |text: &str| decoded(text).map(Secret::new);
    let user = if user.is_empty() {
        None
    } else {
        Some(secret(user)?)
    };
    if password.is_empty() {
        Err(RedisUrlError)
    } else {
        Ok((user, Some(secret(password)?)))
    }
}

/// Decodes `%40` and the like.
fn decoded(text: &str) -> Result<String, RedisUrlError> {
    let mut bytes = Vec::with_capacity(text.len().min(MOST_CREDENTIAL));
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || {
                    rest.next()
                        .and_then(|digit| char::from(digit).to_digit(16))
                        .ok_or(RedisUrlError)
                };
                u8::try_from(digit()? * 16 + digit()?).map_err(|_| RedisUrlError)?
            }
            _ => byte,
        };
        bytes.push(byte);
    }
    let text = String::from_utf8(bytes).map_err(|_| RedisUrlError)?;
    if text.len() > MOST_CREDENTIAL || text.contains(char::is_control) {
        Err(RedisUrlError)
    } else {
        Ok(text)
    }
}

fn read_authority(text: &str) -> Result<(String, u16), RedisUrlError> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(text) => {
            let (host, rest) = text.split_once(']').ok_or(RedisUrlError)?;
            host.parse::<Ipv6Addr>().map_err(|_| RedisUrlError)?;
            (host, rest)
        }
        None => {
            let end = text.find(':').unwrap_or(text.len());
            let (host, rest) = text.split_at(end);
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if host.is_empty() || host.len() > 253 || !host.bytes().all(plain) {
                return Err(RedisUrlError);
            }
            (host, rest)
        }
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => number(port)
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0),
        None if rest.is_empty() => Some(DEFAULT_PORT),
        None => None,
    };
    Ok((host.to_owned(), port.ok_or(RedisUrlError)?))
}

fn number(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn read(text: &str) -> RedisUrl {
        text.parse().unwrap_or_else(|_| panic!("{text}"))
    }

    #[test]
    #[contract("CK32")]
    fn both_schemes_and_the_form_with_a_password_are_read() {
        let plain = read("redis://redis-service:6379");
        assert_eq!(
            (plain.is_tls(), plain.host(), plain.port(), plain.database()),
            (false, "redis-service", 6379, 0)
        );
        assert_eq!((plain.user(), plain.password()), (None, None));
        assert!(read("rediss://redis:6380").is_tls());
        assert_eq!(read("redis://h").port(), 6379);
        assert_eq!(
            (
                read("redis://[::1]:7/3").host(),
                read("redis://[::1]:7/3").database()
            ),
            ("::1", 3)
        );

        let expose = |secret: Option<&Secret>| secret.map(|secret| secret.expose().to_owned());
        let url = read("redis://:p@ss/w%3Ard@h:1/");
        assert_eq!(
            (expose(url.user()), expose(url.password())),
            (None, Some("p@ss/w:rd".to_owned()))
        );
        let url = read("rediss://me:secret@h:1");
        assert_eq!(
            (expose(url.user()), expose(url.password())),
            (Some("me".to_owned()), Some("secret".to_owned()))
        );
    }

    #[test]
    fn a_url_is_displayed_without_credentials_and_the_output_parses_again() {
        for (text, shown) in [
            ("redis://me:secret@h:1/2", "redis://***@h:1/2"),
            ("rediss://:secret@h", "rediss://***@h:6379"),
            ("redis://[::1]", "redis://[::1]:6379"),
        ] {
            assert_eq!(read(text).to_string(), shown);
            assert_eq!(read(shown).to_string(), shown);
            assert!(!format!("{:?}", read(text)).contains("secret"));
        }
    }

    #[test]
    fn other_urls_are_rejected() {
        for text in [
            "",
            "redis://",
            "redis:h",
            "http://h:1",
            "redis://h:0",
            "redis://h:65536",
            "redis://h:+1",
            "redis://h/x",
            "redis://h/-1",
            "redis://h:1?x=y",
            "redis://user@h",
            "redis://:@h",
            "redis://:%zz@h",
            "redis://:a%0ab@h",
            "redis://[::1",
            "redis://[x]",
            "redis://::1",
            "redis://a b",
            "unix:///tmp/redis.sock",
        ] {
            assert_eq!(text.parse::<RedisUrl>(), Err(RedisUrlError), "{text}");
        }
    }
}
