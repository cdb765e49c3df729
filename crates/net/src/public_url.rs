//! URLs that another program fetches, such as an engine that fetches a picture for a client.
//!
//! The router does not connect to them, so it cannot check the address that is connected to. It
//! refuses what no program should fetch for a stranger: addresses that are not of the public
//! internet, names of internal networks, and spellings that programs read differently. A public
//! name that resolves to an internal address passes.

use std::net::IpAddr;

use crate::{
    destinations::is_public,
    worker_url::{check_host, parse_port, split_port},
};

/// Last labels of names that mean the machine itself or an internal network.
const INTERNAL: [&str; 13] = [
    "localhost",
    "localdomain",
    "local",
    "internal",
    "intranet",
    "private",
    "lan",
    "corp",
    "home",
    "arpa",
    "svc",
    "test",
    "invalid",
];
/// Names of metadata services that look public.
const METADATA: [&str; 4] = [
    "metadata.goog",
    "metadata.tencentyun.com",
    "metadata.platformequinix.com",
    "metadata.packet.net",
];

/// Why a URL is not to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublicUrlError {
    /// Another scheme than http and https.
    #[error("is no http or https URL")]
    Scheme,
    /// Programs could read it differently.
    #[error(
        "has an unusual spelling: write http://host/path with a plain name or a usual ip address"
    )]
    Spelling,
    /// The host is not one of the public internet.
    #[error("leads to an address or a name that is not public")]
    Host,
}

/// Checks whether a program may fetch a URL for a stranger.
///
/// ```
/// assert!(net::check_public_url("https://example.com/a.png?size=1").is_ok());
/// assert!(net::check_public_url("http://169.254.169.254/latest").is_err());
/// ```
///
/// # Errors
///
/// It is no such URL; the error names the reason.
pub fn check_public_url(url: &str) -> Result<(), PublicUrlError> {
    let (scheme, rest) = url.split_once("://").ok_or(PublicUrlError::Scheme)?;
    if !["http", "https"]
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known))
    {
        return Err(PublicUrlError::Scheme);
    }
    // Some parsers remove such characters, and some take a backslash for a slash.
    let is_odd = |byte: u8| byte <= b' ' || byte == 0x7f || byte == b'\\';
    // Some take a host behind a `?` or `#` for that of a user.
    let may_have_user = rest.split('/').next().is_some_and(|it| it.contains('@'));
    if url.bytes().any(is_odd) || may_have_user {
        return Err(PublicUrlError::Spelling);
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (host, port) = split_port(authority).map_err(|_| PublicUrlError::Spelling)?;
    if let Some(port) = port {
        parse_port(port).map_err(|_| PublicUrlError::Spelling)?;
    }
    let host = check_host(host).map_err(|_| PublicUrlError::Spelling)?;
    let is_allowed = match host.parse::<IpAddr>() {
        Ok(address) => is_public(address),
        Err(_) => is_public_name(&host),
    };
    if is_allowed {
        Ok(())
    } else {
        Err(PublicUrlError::Host)
    }
}

/// Returns whether a name, in lower case, can be one of the public internet: one without a dot is
/// looked up in the domain of the machine.
fn is_public_name(name: &str) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(_, last)| !INTERNAL.contains(&last))
        && !METADATA.contains(&name)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S43")]
    fn urls_of_the_public_internet_pass() {
        for url in [
            "http://example.com",
            "https://example.com/",
            "HTTPS://Example.COM:8443/a/b.png?x=1&y=http://127.0.0.1/#z",
            "https://example.com?x=1",
            "https://example.com/a@b/%20(1).png",
            "https://example.com/bild-\u{e4}.png",
            "http://93.184.216.34/a",
            "http://[2606:4700::1111]:80/a",
            "http://[64:ff9b::8.8.8.8]/",
            "https://xn--bcher-kva.example/a",
            "https://localhost.example.com/a",
        ] {
            assert_eq!(check_public_url(url), Ok(()), "{url}");
        }
    }

    #[test]
    #[contract("S38", "S43")]
    fn other_schemes_and_unusual_spellings_are_refused() {
        use PublicUrlError::{Scheme, Spelling};
        for (url, error) in [
            ("", Scheme),
            ("file:///etc/passwd", Scheme),
            ("gopher://example.com/", Scheme),
            ("ftp://example.com/", Scheme),
            ("javascript:alert(1)", Scheme),
            ("/etc/passwd", Scheme),
            ("//example.com/a", Scheme),
            ("http:example.com", Scheme),
            ("http:/example.com", Scheme),
            (" http://example.com", Scheme),
            ("http://user@example.com/", Spelling),
            ("http://user:pass@example.com/", Spelling),
            ("http://example.com@127.0.0.1/", Spelling),
            ("http://example.com?@127.0.0.1/", Spelling),
            ("http://example.com#@127.0.0.1/", Spelling),
            ("http://example.com\\@127.0.0.1/", Spelling),
            ("http://127.0.0.1\\.example.com/", Spelling),
            ("http://exa\tmple.com/", Spelling),
            ("http://example.com/a b", Spelling),
            ("http://example.com/\n", Spelling),
            ("http:///example.com/", Spelling),
            ("http://", Spelling),
            ("http://example.com:0/", Spelling),
            ("http://example.com:80a/", Spelling),
            ("http://example.com:/", Spelling),
            ("http://example.com./", Spelling),
            ("http://%31%32%37.0.0.1/", Spelling),
            ("http://2852039166/", Spelling),
            ("http://0x7f000001/", Spelling),
            ("http://0x7f.1/", Spelling),
            ("http://0177.0.0.1/", Spelling),
            ("http://127.1/", Spelling),
            ("http://[fe80::1%25eth0]/", Spelling),
            ("http://[::1/", Spelling),
            ("http://[::1]x/", Spelling),
            ("http://\u{ff11}27.0.0.1/", Spelling),
            ("http://example\u{3002}com/", Spelling),
        ] {
            assert_eq!(check_public_url(url), Err(error), "{url:?}");
        }
    }

    #[test]
    #[contract("S39", "S40", "S43")]
    fn addresses_and_names_that_are_not_public_are_refused() {
        for host in [
            "169.254.169.254",
            "127.0.0.1",
            "127.8.9.1",
            "10.0.0.5",
            "172.16.3.4",
            "192.168.1.1",
            "100.64.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "198.18.0.1",
            "203.0.113.5",
            "0.0.0.0",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "[::1]",
            "[::]",
            "[fe80::1]",
            "[fd00::5]",
            "[fd00:ec2::254]",
            "[fec0::1]",
            "[ff02::1]",
            "[2001:db8::1]",
            "[2001:0:5ef5:79fb::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:169.254.169.254]",
            "[::10.0.0.5]",
            "[64:ff9b::a9fe:a9fe]",
            "[64:ff9b::10.0.0.5]",
            "[64:ff9b:1::808:808]",
            "[2002:a9fe:a9fe::1]",
            "[2002:a00:5::1]",
            "localhost",
            "LOCALHOST",
            "redis",
            "metadata",
            "instance-data",
            "a.localhost",
            "metadata.google.internal",
            "Metadata.Goog",
            "metadata.tencentyun.com",
            "instance-data.ec2.internal",
            "redis.default.svc",
            "redis.default.svc.cluster.local",
            "printer.local",
            "nas.home.arpa",
        ] {
            let checked = check_public_url(&format!("http://{host}:8000/a"));
            assert_eq!(checked, Err(PublicUrlError::Host), "{host}");
        }
    }
}
