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
///
/// A proxy in front may replace the `Host`; then the browser's own statement counts that the page
/// has the origin of its request. No page can set it.
pub fn foreign_origin(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    if sites.next().is_some_and(|site| site == "same-origin") && sites.next().is_none() {
        return None;
    }
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
    let is_own = |origin: &HeaderValue| {
        let page = origin.to_str().ok().and_then(|it| it.split_once("://"));
        page.is_some_and(|(scheme, page)| {
            let bare = |host| without_default_port(scheme, host);
            host.is_some_and(|host| bare(host).eq_ignore_ascii_case(bare(page.as_bytes())))
        })
    };
    headers
        .get_all(header::ORIGIN)
        .iter()
        .find(|origin| !is_own(origin))
}

/// Returns whether the browser says that a page of another origin makes the request. It says so of
/// images and links too, whose requests have no `Origin`. `same-site` is such a page: another port
/// or subdomain.
pub fn is_from_another_page(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    sites.any(|site| site == "cross-site" || site == "same-site")
}

/// Returns a host without the port that its scheme implies.
fn without_default_port<'a>(scheme: &str, host: &'a [u8]) -> &'a [u8] {
    let port: &[u8] = match scheme {
        "http" => b":80",
        "https" => b":443",
        _ => return host,
    };
    host.strip_suffix(port).unwrap_or(host)
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
            (&["https://router.example"], "router.example:443"),
            (&["http://router.example"], "router.example:80"),
            (&["http://[::1]:8080"], "[::1]:8080"),
        ] {
            assert!(!foreign(origins, host), "{origins:?}");
        }
        for (origins, host) in [
            (&["http://evil.test"][..], "127.0.0.1:8080"),
            (&["http://127.0.0.1:8000"], "127.0.0.1:8080"),
            (&["http://127.0.0.1:8080.evil.test"], "127.0.0.1:8080"),
            (&["http://router.example"], "router.example:443"),
            (&["https://router.example"], "router.example:80"),
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
    fn a_page_whose_browser_says_that_it_is_of_this_origin_is_behind_a_proxy() {
        for (sites, foreign) in [
            (&["same-origin"][..], false),
            (&["same-site"], true),
            (&["cross-site"], true),
            (&["none"], true),
            (&["same-origin", "cross-site"], true),
            (&[], true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:8080"));
            headers.insert(
                header::ORIGIN,
                HeaderValue::from_static("https://llm.example"),
            );
            for site in sites {
                headers.append("sec-fetch-site", HeaderValue::from_static(site));
            }
            assert_eq!(foreign_origin(&headers).is_some(), foreign, "{sites:?}");
        }
    }

    #[test]
    #[contract("S15")]
    fn an_image_in_a_page_of_another_origin_is_told_from_a_call_of_a_program_or_a_person() {
        for (sites, is_from_another) in [
            (&[][..], false),
            (&["none"], false),
            (&["same-origin"], false),
            (&["same-site"], true),
            (&["cross-site"], true),
            (&["none", "cross-site"], true),
        ] {
            let mut headers = HeaderMap::new();
            for site in sites {
                headers.append("sec-fetch-site", HeaderValue::from_static(site));
            }
            assert_eq!(is_from_another_page(&headers), is_from_another, "{sites:?}");
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
