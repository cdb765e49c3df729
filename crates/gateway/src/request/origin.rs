//! Where a request comes from: which web pages may call a listener that needs no key, and whose
//! forwarding fields are believed.
//!
//! Not here: keys. A page of another site cannot send one without the user's help.

use std::net::{IpAddr, SocketAddr};

use config::{ServerSection, WebOrigin};
use dialect::{ApiError, ErrorCode};
use http::{HeaderMap, HeaderValue, header};
use net::server::{self, PeerAddress};

use super::{RequestSender, overrides::printable};
use crate::routes::BodyMode;

/// Most proxies in a chain that is believed.
const MOST_PROXIES: usize = 10;

/// Checks that no page of another site makes its visitor's browser send this request, which needs no
/// key. Browsers name the page in `Origin`; programs send none.
pub(crate) fn check_page(
    server: &ServerSection,
    headers: &HeaderMap,
    peer: PeerAddress,
    body: BodyMode,
) -> Result<(), ApiError> {
    if peer == PeerAddress::Local {
        // No browser connects to a unix socket.
        return Ok(());
    }
    if let Some(origin) = server::foreign_origin(headers)
        && !server
            .allowed_origins
            .iter()
            .any(|allowed| allowed.is(origin.as_bytes()))
    {
        return Err(foreign_page(origin, headers.get(header::HOST)));
    }
    if only_here(server)
        && let Some(host) = headers.get(header::HOST)
        && !is_own_host(server, host.as_bytes())
    {
        let host = text_of(host);
        return Err(forbidden(format!(
            "the Host header is {host}, which may be a name of another site: ask for 127.0.0.1 or localhost, use an API key, \
             or, also if a proxy in front sends this name, set server.allowed_origins: [\"http://{host}\"]"
        )));
    }
    // A form of any page can send this type, also from browsers that name no origin; no client of
    // the API does.
    if body == BodyMode::Limited && is_plain_text(headers) {
        return Err(ApiError::new(
            ErrorCode::UnsupportedEncoding,
            "the body has Content-Type text/plain: send application/json",
        ));
    }
    Ok(())
}

/// Returns the error for a page of another site, with the setting that permits it.
fn foreign_page(origin: &HeaderValue, host: Option<&HeaderValue>) -> ApiError {
    let (origin, host) = (text_of(origin), host.map_or_else(|| "none".into(), text_of));
    let listed = match origin.parse::<WebOrigin>() {
        Ok(_) => format!("set server.allowed_origins: [\"{origin}\"]"),
        Err(_) => "let a program send the request, without Origin".to_owned(),
    };
    forbidden(format!(
        "the Origin header is {origin}, a page of another site than the Host header, {host}: use an API key, let a proxy in \
         front keep the Host, or {listed}"
    ))
}

fn text_of(value: &HeaderValue) -> String {
    printable(&String::from_utf8_lossy(value.as_bytes()))
}

fn forbidden(message: String) -> ApiError {
    ApiError::new(ErrorCode::DestinationForbidden, message)
}

/// Returns whether clients are on this machine only. Elsewhere any name may lead to the listener.
fn only_here(server: &ServerSection) -> bool {
    server.listen.is_local()
        && server
            .also_listen
            .iter()
            .all(config::ListenSetting::is_local)
}

fn is_own_host(server: &ServerSection, host: &[u8]) -> bool {
    server::is_here(host)
        || server::is_private_name(host)
        || server
            .allowed_origins
            .iter()
            .any(|allowed| allowed.has_host(host))
}

fn is_plain_text(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let essence = value.as_bytes().split(|byte| *byte == b';').next();
        essence.is_some_and(|it| it.trim_ascii().eq_ignore_ascii_case(b"text/plain"))
    })
}

/// Removes the fields in which proxies report the client of a request, unless a trusted proxy sent
/// them: any client can write them.
pub(crate) fn remove_untrusted_forwarding(
    server: &ServerSection,
    headers: &mut HeaderMap,
    peer: Option<IpAddr>,
) {
    let is_chain = |name: &str| name == "x-forwarded-for" || name == "forwarded";
    let links = |headers: &HeaderMap| {
        let values = headers.iter().filter(|(name, _)| is_chain(name.as_str()));
        values
            .map(|(_, value)| value.as_bytes().split(|byte| *byte == b',').count())
            .sum::<usize>()
    };
    if is_trusted_proxy(server, peer) && links(headers) <= MOST_PROXIES {
        return;
    }
    while let Some(name) = headers
        .keys()
        .find(|name| proxy::headers::is_of_proxies(name))
        .cloned()
    {
        headers.remove(name);
    }
}

fn is_trusted_proxy(server: &ServerSection, peer: Option<IpAddr>) -> bool {
    match peer {
        Some(address) => {
            let mut proxies = server.trusted_proxies.iter();
            proxies.any(|range| range.contains(address))
        }
        // Permissions of the socket's file decide who connects.
        None => true,
    }
}

/// Returns the client's address: the last one of `X-Forwarded-For` that is no trusted proxy, if a
/// trusted proxy sent the request, else the peer's. What stands before it any client can write.
pub(crate) fn client_address(
    server: &ServerSection,
    headers: &HeaderMap,
    sender: RequestSender,
) -> PeerAddress {
    if !is_trusted_proxy(server, sender.address) {
        return sender.share;
    }
    let values = headers.get_all("x-forwarded-for").iter().rev();
    let links = values.flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','));
    for link in links.take(MOST_PROXIES) {
        let Some(address) = forwarded_address(link) else {
            break;
        };
        if !is_trusted_proxy(server, Some(address.to_canonical())) {
            return PeerAddress::of(address);
        }
    }
    sender.share
}

/// Reads an address, which some proxies write with a port.
fn forwarded_address(link: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(link.trim_ascii()).ok()?;
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    text.parse().ok().or_else(with_port)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use http::HeaderName;

    use super::*;

    const REMOTE: PeerAddress = PeerAddress::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let field = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        fields.iter().map(field).collect()
    }

    fn code(
        server: &ServerSection,
        fields: &[(&'static str, &'static str)],
        peer: PeerAddress,
    ) -> Option<ErrorCode> {
        let checked = check_page(server, &headers(fields), peer, BodyMode::Limited);
        checked.err().map(|error| error.code)
    }

    #[test]
    #[contract("S15")]
    fn programs_and_pages_of_the_listener_call_it_without_a_key() {
        let server = ServerSection::default();
        for fields in [
            &[("host", "127.0.0.1:8080")][..],
            &[],
            &[
                ("host", "localhost:8080"),
                ("content-type", "application/json"),
            ],
            // curl -d without a header.
            &[
                ("host", "localhost:8080"),
                ("content-type", "application/x-www-form-urlencoded"),
            ],
            &[
                ("host", "router"),
                ("content-type", "application/json; charset=utf-8"),
            ],
            &[("host", "host.docker.internal:8080")],
            &[
                ("host", "localhost:8080"),
                ("origin", "http://localhost:8080"),
            ],
        ] {
            assert_eq!(code(&server, fields, REMOTE), None, "{fields:?}");
        }
    }

    #[test]
    #[contract("S15")]
    fn pages_of_other_sites_do_not() {
        let server = ServerSection::default();
        let forbidden = Some(ErrorCode::DestinationForbidden);
        for (fields, expected) in [
            // A cross-site request, a sandboxed frame, another port of this machine.
            (
                &[("host", "127.0.0.1:8080"), ("origin", "http://evil.test")][..],
                forbidden,
            ),
            (&[("host", "127.0.0.1:8080"), ("origin", "null")], forbidden),
            (
                &[
                    ("host", "localhost:8080"),
                    ("origin", "http://localhost:3000"),
                ],
                forbidden,
            ),
            // DNS rebinding: the page's own name leads here.
            (&[("host", "evil.test:8080")], forbidden),
            (
                &[
                    ("host", "evil.test:8080"),
                    ("origin", "http://evil.test:8080"),
                ],
                forbidden,
            ),
            (
                &[
                    ("host", "127.0.0.1:8080"),
                    ("content-type", "Text/Plain;charset=UTF-8"),
                ],
                Some(ErrorCode::UnsupportedEncoding),
            ),
        ] {
            assert_eq!(code(&server, fields, REMOTE), expected, "{fields:?}");
            assert_eq!(code(&server, fields, PeerAddress::Local), None);
        }
    }

    #[test]
    #[contract("S15")]
    fn a_refusal_names_what_was_received_and_the_setting_that_permits_it() {
        let server = ServerSection::default();
        let message = |fields: &[(&'static str, &'static str)]| {
            let checked = check_page(&server, &headers(fields), REMOTE, BodyMode::Limited);
            checked.expect_err("a refusal").message
        };
        let host = message(&[("host", "myhost.lan:8080")]);
        assert!(
            host.contains("the Host header is myhost.lan:8080"),
            "{host}"
        );
        let line = "server.allowed_origins: [\"http://myhost.lan:8080\"]";
        assert!(host.contains(line), "{host}");
        let page = message(&[
            ("host", "127.0.0.1:8080"),
            ("origin", "http://app.test:3000"),
        ]);
        for part in [
            "the Origin header is http://app.test:3000",
            "the Host header, 127.0.0.1:8080",
            "server.allowed_origins: [\"http://app.test:3000\"]",
        ] {
            assert!(page.contains(part), "{page}");
        }
        // No setting can list this one.
        let sandboxed = message(&[("host", "127.0.0.1:8080"), ("origin", "null")]);
        assert!(!sandboxed.contains("allowed_origins"), "{sandboxed}");
    }

    #[test]
    #[contract("S15")]
    fn listed_origins_are_allowed_with_their_host() {
        let server = ServerSection {
            allowed_origins: vec!["https://app.example".parse().unwrap()],
            ..ServerSection::default()
        };
        let listed = &[("host", "app.example"), ("origin", "https://app.example")];
        assert_eq!(code(&server, listed, REMOTE), None);
        let other = &[("host", "app.example"), ("origin", "https://evil.test")];
        assert!(code(&server, other, REMOTE).is_some());
    }

    #[test]
    #[contract("S15")]
    fn a_listener_for_other_machines_has_any_name_and_no_foreign_pages() {
        let server = ServerSection {
            listen: "0.0.0.0:8080".parse().unwrap(),
            ..ServerSection::default()
        };
        assert_eq!(code(&server, &[("host", "llm.example")], REMOTE), None);
        let foreign = &[("host", "llm.example"), ("origin", "http://evil.test")];
        assert!(code(&server, foreign, REMOTE).is_some());
    }

    #[test]
    #[contract("S29")]
    fn forwarding_fields_are_believed_only_from_trusted_proxies() {
        let sent = [
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-host", "elsewhere"),
            ("x-real-ip", "127.0.0.1"),
            ("forwarded", "for=127.0.0.1"),
            ("accept", "*/*"),
        ];
        let left = |server: &ServerSection, mut headers: HeaderMap, peer| {
            remove_untrusted_forwarding(server, &mut headers, peer);
            headers.len()
        };
        let mut server = ServerSection::default();
        let at = |address: &str| Some(address.parse::<IpAddr>().unwrap());
        let remote = at("10.0.0.9");
        assert_eq!(left(&server, headers(&sent), remote), 1);
        assert_eq!(left(&server, headers(&sent), None), 5);
        server.trusted_proxies = vec!["10.0.0.0/24".parse().unwrap()];
        assert_eq!(left(&server, headers(&sent), remote), 5);
        assert_eq!(left(&server, headers(&sent), at("10.0.1.9")), 1);
        // All bits of an IPv6 address count.
        for range in ["::1", "fd00::5", "fd00::/112"] {
            server.trusted_proxies = vec![range.parse().unwrap()];
            let trusted = |peer| left(&server, headers(&sent), at(peer)) == 5;
            assert_eq!(trusted("::1"), range == "::1", "{range}");
            assert_eq!(trusted("fd00::5"), range != "::1", "{range}");
            assert_eq!(trusted("fd00::6"), range == "fd00::/112", "{range}");
            assert!(!trusted("fd00::1:0:0:5"), "{range}");
        }
        // A chain that no chain of proxies makes.
        let long = [
            (
                "x-forwarded-for",
                "1.1.1.1, 1.1.1.1, 1.1.1.1, 1.1.1.1, 1.1.1.1, 1.1.1.1",
            ),
            ("forwarded", "for=1, for=1, for=1, for=1, for=1"),
        ];
        assert_eq!(left(&server, headers(&long), remote), 0);
    }

    #[test]
    #[contract("S13", "S18")]
    fn the_client_is_the_last_address_that_no_trusted_proxy_wrote_of_itself() {
        let server = ServerSection {
            trusted_proxies: vec!["10.0.0.0/24".parse().unwrap()],
            ..ServerSection::default()
        };
        let peer = |address: &str| PeerAddress::of(address.parse().unwrap());
        let client = |sender: &str, chains: &[&'static str]| {
            let fields: Vec<_> = chains.iter().map(|it| ("x-forwarded-for", *it)).collect();
            let mut sent = HeaderMap::new();
            for (name, value) in &fields {
                sent.append(*name, HeaderValue::from_static(value));
            }
            let sender = RequestSender {
                share: peer(sender),
                address: sender.parse().ok(),
            };
            client_address(&server, &sent, sender)
        };
        for (sender, chains, expected) in [
            ("192.0.2.1", &["198.51.100.7"][..], "192.0.2.1"),
            ("10.0.0.9", &[], "10.0.0.9"),
            ("10.0.0.9", &["198.51.100.7"], "198.51.100.7"),
            ("10.0.0.9", &["127.0.0.1, 198.51.100.7"], "198.51.100.7"),
            ("10.0.0.9", &["127.0.0.1", "198.51.100.7"], "198.51.100.7"),
            ("10.0.0.9", &["198.51.100.7:4711, 10.0.0.3"], "198.51.100.7"),
            ("10.0.0.9", &["::ffff:198.51.100.7"], "198.51.100.7"),
            ("10.0.0.9", &["2001:db8::1"], "2001:db8::2"),
            ("10.0.0.9", &["[2001:db8::1]:80"], "2001:db8::2"),
            ("10.0.0.9", &["198.51.100.7, unknown"], "10.0.0.9"),
            ("10.0.0.9", &["10.0.0.1, 10.0.0.2"], "10.0.0.9"),
        ] {
            assert_eq!(
                client(sender, chains),
                peer(expected),
                "{sender} {chains:?}"
            );
        }
        let long = "198.51.100.7".to_owned() + &", 10.0.0.1".repeat(MOST_PROXIES);
        let sender = RequestSender {
            share: PeerAddress::Local,
            address: None,
        };
        let mut sent = HeaderMap::new();
        sent.insert("x-forwarded-for", long.parse().unwrap());
        assert_eq!(client_address(&server, &sent, sender), PeerAddress::Local);
    }
}
