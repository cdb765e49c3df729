//! Address of a Redis server, or of the sentinels that know it.

use std::{fmt, net::Ipv6Addr, str::FromStr};

use crate::secret::Secret;

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;
/// Most sentinels in one URL.
const MOST_SENTINELS: usize = 16;
/// Longest name of a primary, bytes.
const MOST_NAME: usize = 128;
/// Longest user or password, bytes.
const MOST_CREDENTIAL: usize = 4096;

/// `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`, or `rediss://` if encrypted. Displayed
/// without user and password.
///
/// `redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]..]/NAME[/DATABASE]`, or
/// `rediss+sentinel://`: the primary that these sentinels know by this name. User and password are
/// those of the primary.
///
/// ```
/// let url: settings::RedisUrl = "redis://:s%40fe@cache:6380/2".parse().unwrap();
/// assert_eq!((url.host(), url.port(), url.database()), ("cache", 6380, 2));
/// assert_eq!(url.password().map(settings::Secret::expose), Some("s@fe"));
/// assert_eq!(url.to_string(), "redis://***@cache:6380/2");
///
/// let url: settings::RedisUrl = "redis+sentinel://s1,s2:26380/main".parse().unwrap();
/// assert_eq!((url.primary(), url.addresses().len()), (Some("main"), 2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    tls: bool,
    user: Option<Secret>,
    password: Option<Secret>,
    /// The server, or the sentinels.
    addresses: Vec<RedisAddress>,
    primary: Option<String>,
    database: u32,
}

/// Host and port of a server or a sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisAddress {
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// Error for a text that is no such URL. It does not quote the text, which may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisUrlError;

impl fmt::Display for RedisUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not the URL of a Redis server: expected redis://HOST:PORT, as in redis://127.0.0.1:6379, or \
             redis+sentinel://HOST:PORT,HOST:PORT/NAME",
        )
    }
}

impl std::error::Error for RedisUrlError {}

impl RedisUrl {
    /// Returns whether the scheme requires an encrypted connection.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Returns the name or address, without brackets; of several sentinels the first one's.
    pub fn host(&self) -> &str {
        self.addresses.first().map_or("", |first| &first.host)
    }

    /// Returns the port; of several sentinels the first one's.
    pub fn port(&self) -> u16 {
        self.addresses.first().map_or(0, |first| first.port)
    }

    /// Returns the server, or the sentinels; at least one.
    pub fn addresses(&self) -> &[RedisAddress] {
        &self.addresses
    }

    /// Returns the primary's name at the sentinels; `None`: the URL names the server itself.
    pub fn primary(&self) -> Option<&str> {
        self.primary.as_deref()
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
        let (tls, sentinels) = match scheme {
            "redis" => (false, false),
            "rediss" => (true, false),
            "redis+sentinel" => (false, true),
            "rediss+sentinel" => (true, true),
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
        let (authority, path) = address.split_once('/').unwrap_or((address, ""));
        let (addresses, primary, database) = if sentinels {
            let (name, database) = path.split_once('/').unwrap_or((path, ""));
            let primary = Some(read_name(name)?);
            (read_sentinels(authority)?, primary, database)
        } else {
            (vec![read_authority(authority, DEFAULT_PORT)?], None, path)
        };
        let database = if database.is_empty() {
            Some(0)
        } else {
            number(database)
        };
        Ok(Self {
            tls,
            user,
            password,
            addresses,
            primary,
            database: database.ok_or(RedisUrlError)?,
        })
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "rediss" } else { "redis" })?;
        f.write_str(if self.primary.is_some() {
            "+sentinel://"
        } else {
            "://"
        })?;
        if self.password.is_some() {
            f.write_str("***@")?;
        }
        for (at, address) in self.addresses.iter().enumerate() {
            let separator = if at == 0 { "" } else { "," };
            write!(f, "{separator}{address}")?;
        }
        if let Some(primary) = &self.primary {
            write!(f, "/{primary}")?;
        }
        if self.database == 0 {
            Ok(())
        } else {
            write!(f, "/{}", self.database)
        }
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
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

fn read_sentinels(text: &str) -> Result<Vec<RedisAddress>, RedisUrlError> {
    let sentinels = text.split(',');
    let sentinels = sentinels.map(|text| read_authority(text, DEFAULT_SENTINEL_PORT));
    let sentinels: Vec<_> = sentinels
        .take(MOST_SENTINELS + 1)
        .collect::<Result<_, _>>()?;
    if sentinels.len() > MOST_SENTINELS {
        return Err(RedisUrlError);
    }
    Ok(sentinels)
}

/// Reads the name of a primary, as a sentinel's configuration may have it.
fn read_name(text: &str) -> Result<String, RedisUrlError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if (1..=MOST_NAME).contains(&text.len()) && text.bytes().all(plain) {
        Ok(text.to_owned())
    } else {
        Err(RedisUrlError)
    }
}

fn read_authority(text: &str, default_port: u16) -> Result<RedisAddress, RedisUrlError> {
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
        None if rest.is_empty() => Some(default_port),
        None => None,
    };
    Ok(RedisAddress {
        host: host.to_owned(),
        port: port.ok_or(RedisUrlError)?,
    })
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
    #[contract("CK32")]
    fn sentinels_and_the_name_of_their_primary_are_read_and_displayed() {
        let url = read("rediss+sentinel://me:secret@s1,[::1]:7,s3:26380/my-primary.1/2");
        let ports: Vec<_> = url
            .addresses()
            .iter()
            .map(|at| (&*at.host, at.port))
            .collect();
        assert_eq!(ports, [("s1", 26379), ("::1", 7), ("s3", 26380)]);
        assert_eq!((url.primary(), url.database()), (Some("my-primary.1"), 2));
        assert!(url.is_tls() && url.password().is_some());
        let shown = "rediss+sentinel://***@s1:26379,[::1]:7,s3:26380/my-primary.1/2";
        assert_eq!(url.to_string(), shown);
        assert_eq!(read(shown).to_string(), shown);
        assert_eq!(read("redis://h").primary(), None);
        let many = vec!["s"; MOST_SENTINELS + 1].join(",");
        for text in [
            "redis+sentinel://s1",
            "redis+sentinel://s1/",
            "redis+sentinel:///main",
            "redis+sentinel://s1,/main",
            "redis+sentinel://s1/main/x",
            "redis+sentinel://s1/ma in",
            "redis://s1,s2",
            &format!("redis+sentinel://{many}/main"),
        ] {
            assert_eq!(text.parse::<RedisUrl>(), Err(RedisUrlError), "{text}");
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
