//! The header fields that are forwarded and those that are not.

use contract_id::contract;
use proptest::{prelude::*, test_runner::TestRunner};

use super::{CHAT, RoutedEngine};
use crate::harness::{RawClient, RawReply, ScriptedReply, chat, json_reply};

fn posted(pair: &RoutedEngine, headers: &[(&str, &str)]) -> RawReply {
    RawClient::post_with(
        &pair.router.data(),
        CHAT,
        headers,
        chat("m", "hi", 1).to_string().as_bytes(),
    )
}

#[test]
#[contract("S29")]
fn forwarding_fields_cross_only_from_a_trusted_proxy() {
    let fields = [
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-Host", "elsewhere"),
        ("X-Real-IP", "127.0.0.1"),
        ("Forwarded", "for=127.0.0.1"),
    ];
    for (settings, expected) in [
        ("", false),
        ("server: {trusted_proxies: [10.0.0.0/8]}\n", false),
        ("server: {trusted_proxies: [127.0.0.0/8]}\n", true),
    ] {
        let pair = RoutedEngine::start_with(settings);
        assert_eq!(posted(&pair, &fields).status, 200);
        let seen = pair.engine.next_request();
        for (name, value) in fields {
            assert_eq!(
                seen.header(&name.to_ascii_lowercase()).as_deref(),
                expected.then_some(value),
                "{settings} {name}"
            );
        }
    }
}

#[test]
#[contract("S27", "S28")]
fn credentials_connection_fields_and_router_headers_are_not_forwarded() {
    let pair = RoutedEngine::start();
    let stays = [
        ("Authorization", "Bearer secret"),
        ("X-Api-Key", "secret"),
        ("api-key", "secret"),
        ("Cookie", "session=secret"),
        ("Proxy-Authorization", "Basic secret"),
        ("Connection", "x-named, keep-alive"),
        ("X-Named", "1"),
        ("Keep-Alive", "timeout=5"),
        ("TE", "trailers"),
        ("Upgrade", "h2c"),
        ("x-warmroute-policy", "random"),
        ("x-data-parallel-rank", "3"),
        ("x-kv-cache-source-host-port", "10.0.0.7:8000"),
        ("x-llm-d-kv-cache-source-host-port", "10.0.0.7:8000"),
        ("x-prefiller-host-port", "10.0.0.7:8000"),
    ];
    let crosses = [
        ("User-Agent", "agent/1"),
        ("X-Custom", "a, b"),
        ("traceparent", "00-1-2-01"),
        ("Accept", "*/*"),
    ];
    assert_eq!(
        posted(&pair, &[stays.as_slice(), &crosses].concat()).status,
        200
    );
    let seen = pair.engine.next_request();
    for (name, _) in stays {
        assert_eq!(seen.header(&name.to_ascii_lowercase()), None, "{name}");
    }
    for (name, value) in crosses {
        assert_eq!(
            seen.header(&name.to_ascii_lowercase()).as_deref(),
            Some(value),
            "{name}"
        );
    }
    assert!(!String::from_utf8_lossy(&seen.head).contains("secret"));
    assert_eq!(seen.header("host"), Some(pair.engine.address().to_owned()));
}

#[test]
fn a_request_id_goes_both_ways_and_is_generated_where_the_clients_is_unusable() {
    let pair = RoutedEngine::start();
    let reply = posted(&pair, &[("X-Request-ID", "mine-1")]);
    assert_eq!(reply.header("x-request-id"), Some("mine-1"));
    assert_eq!(
        pair.engine.next_request().header("x-request-id").as_deref(),
        Some("mine-1")
    );
    for unusable in ["", "two words", &"a".repeat(129)] {
        let reply = posted(&pair, &[("x-request-id", unusable)]);
        let made = reply.header("x-request-id").unwrap().to_owned();
        assert!(made.starts_with("req-") && made.len() == 20, "{made}");
        assert_eq!(
            pair.engine.next_request().header("x-request-id"),
            Some(made)
        );
    }
}

#[test]
#[contract("S30")]
fn connection_server_and_router_headers_of_the_engine_are_not_forwarded() {
    let pair = RoutedEngine::start();
    let head = "x-engine: a\r\nX-Engine: b\r\nserver: uvicorn\r\nset-cookie: a=b\r\nx-powered-by: py\r\n\
                x-warmroute-worker: forged\r\nx-request-id: theirs\r\nconnection: x-hop\r\nx-hop: 1\r\n\
                keep-alive: timeout=5\r\nopenai-processing-ms: 5\r\nretry-after: 7\r\n\
                access-control-allow-origin: *\r\nlocation: http://evil.test/\r\nwww-authenticate: Basic\r\n\
                strict-transport-security: max-age=1\r\nclear-site-data: *\r\nalt-svc: h3\r\nlink: <a>\r\n\
                content-security-policy: none\r\nx-accel-redirect: /etc/passwd\r\nserver-timing: db\r\n";
    pair.engine
        .once(ScriptedReply::whole(json_reply("200 OK", head, "{}")));
    let reply = posted(&pair, &[("x-request-id", "ours")]);
    let values = |name: &str| -> Vec<String> {
        let of_name = reply.headers.iter().filter(|(known, _)| known == name);
        of_name
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            .collect()
    };
    assert_eq!(values("x-engine"), ["a", "b"]);
    assert_eq!(values("openai-processing-ms"), ["5"]);
    assert_eq!(values("retry-after"), ["7"]);
    assert_eq!(values("server-timing"), ["db"]);
    assert_eq!(values("x-request-id"), ["ours"]);
    assert_eq!(values("x-warmroute-worker"), [pair.engine.address()]);
    assert_eq!(values("x-warmroute-policy"), ["warm"]);
    assert_eq!(values("x-warmroute-predicted-cached-tokens"), ["0"]);
    assert_eq!(values("x-warmroute-decision").len(), 1);
    for gone in [
        "server",
        "set-cookie",
        "x-powered-by",
        "x-hop",
        "keep-alive",
        "access-control-allow-origin",
        "location",
        "www-authenticate",
        "strict-transport-security",
        "clear-site-data",
        "alt-svc",
        "link",
        "content-security-policy",
        "x-accel-redirect",
    ] {
        assert_eq!(values(gone), [""; 0], "{gone}");
    }
}

#[test]
#[contract("I12")]
fn custom_headers_are_forwarded_in_order_byte_for_byte() {
    let pair = RoutedEngine::start();
    let body = chat("m", "hi", 1).to_string();
    // Visible ASCII and the bytes of other encodings; spaces and tabs only inside.
    let byte = prop_oneof![8 => 0x21..0x7fu8, 2 => 0x80..=0xffu8];
    let inner = prop_oneof![6 => byte.clone(), 1 => Just(b' '), 1 => Just(b'\t')];
    let value = (byte.clone(), prop::collection::vec(inner, 0..30), byte)
        .prop_map(|(a, b, c)| [&[a], &*b, &[c]].concat());
    let fields = prop::collection::vec(("x-[a-z]{1,2}(-[A-Z0-9_]{1,4})?", value), 0..20);
    let config = ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(&fields, |fields| {
        let mut client = pair.client();
        let mut head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n",
            body.len()
        )
        .into_bytes();
        for (name, value) in &fields {
            head.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        client.send_bytes(&[&head, b"\r\n".as_slice(), body.as_bytes()].concat());
        prop_assert_eq!(client.reply().status, 200);
        // Fields of one name keep their order; the order of different names does not matter.
        let sorted = |fields: Vec<(String, Vec<u8>)>| {
            let mut fields: Vec<_> = fields
                .into_iter()
                .map(|(name, value)| (name.to_ascii_lowercase(), value))
                .collect();
            fields.sort_by(|one, other| one.0.cmp(&other.0));
            fields
        };
        let mut seen = pair.engine.next_request().headers();
        seen.retain(|(name, _)| name.starts_with("x-") && name != "x-request-id");
        prop_assert_eq!(sorted(seen), sorted(fields));
        pair.reuse(client);
        Ok(())
    });
    result.unwrap();
}
