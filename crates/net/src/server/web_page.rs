//! What browsers tell about the web page that makes a request.
//!
//! A page of any site can make its visitor's browser send requests to this machine, and by DNS
//! rebinding also read the replies. A listener that asks for no credentials therefore looks at
//! `Origin`, which names the page, and at `Host`, which names the listener as the page knows it.
//!
//! Not here: which pages a listener allows beside its own.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderValue, header};

/// Returns the `Origin` of a page that is not of this listener; `None`: its own page, or no page.
pub fn foreign_origin(headers: &HeaderMap) -> Option<&HeaderValue> {
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
    let is_own = |origin: &HeaderValue| {
        let page = origin.to_str().ok().and_then(|it| it.split_once("://"));
        page.is_some_and(|(_, page)| {
            host.is_some_and(|host| host.eq_ignore_ascii_case(page.as_bytes()))
        })
    };
    headers
        .get_all(header::ORIGIN)
        .iter()
        .find(|origin| !is_own(origin))
}

/// Returns whether a `Host` is this machine by name or an address: a name in another party's DNS is
/// neither.
pub fn is_here(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else {
        return false;
    };
    if host.parse::<SocketAddr>().is_ok() {
        return true;
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok()
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        || name.parse::<IpAddr>().is_ok()
}

/// Returns whether the name in a `Host` cannot belong to a site of the internet: a name without a
/// dot, and names below `localhost` and `internal`, which nobody can register.
pub fn is_private_name(host: &[u8]) -> bool {
    let name = host.split(|byte| *byte == b':').next().unwrap_or(host);
    let name = name.strip_suffix(b".").unwrap_or(name);
    let last = name.rsplit(|byte| *byte == b'.').next().unwrap_or(name);
    last.len() == name.len()
        || last.eq_ignore_ascii_case(b"localhost")
        || last.eq_ignore_ascii_case(b"internal")
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S15")]
    fn only_a_page_with_the_host_of_the_request_is_its_own() {
        let foreign = |origins: &[&'static str], host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            for origin in origins {
                headers.append(header::ORIGIN, HeaderValue::from_static(origin));
            }
            foreign_origin(&headers).is_some()
        };
        for (origins, host) in [
            (&[][..], "127.0.0.1:8080"),
            (&["http://127.0.0.1:8080"], "127.0.0.1:8080"),
            (&["https://Router.Example"], "router.example"),
            (&["http://[::1]:8080"], "[::1]:8080"),
        ] {
            assert!(!foreign(origins, host), "{origins:?}");
        }
        for (origins, host) in [
            (&["http://evil.test"][..], "127.0.0.1:8080"),
            (&["http://127.0.0.1:8000"], "127.0.0.1:8080"),
            (&["http://127.0.0.1:8080.evil.test"], "127.0.0.1:8080"),
            (&["null"], "127.0.0.1:8080"),
            (&[""], "127.0.0.1:8080"),
            (&["127.0.0.1:8080"], "127.0.0.1:8080"),
            (
                &["http://127.0.0.1:8080", "http://evil.test"],
                "127.0.0.1:8080",
            ),
        ] {
            assert!(foreign(origins, host), "{origins:?}");
        }
    }

    #[test]
    #[contract("S15")]
    fn a_name_that_a_stranger_can_register_is_no_private_one() {
        for host in [
            "localhost:8080",
            "router",
            "router:8080",
            "host.docker.internal:8080",
            "app.localhost",
            "router.",
        ] {
            assert!(is_private_name(host.as_bytes()), "{host}");
        }
        for host in [
            "evil.test",
            "evil.test:8080",
            "localhost.evil.test",
            "127.0.0.1.evil.test:8080",
            "evil.test.",
            "internal.evil.test",
            "notlocalhost.test",
        ] {
            assert!(!is_private_name(host.as_bytes()), "{host}");
            assert!(!is_here(host.as_bytes()), "{host}");
        }
        for host in ["127.0.0.1:8080", "[::1]:8080", "[::1]", "LOCALHOST"] {
            assert!(is_here(host.as_bytes()), "{host}");
        }
    }
}
