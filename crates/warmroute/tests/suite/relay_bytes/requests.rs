//! Client requests reach the engine byte for byte.

use contract_id::contract;
use proptest::{prelude::*, test_runner::TestRunner};

use super::{CHAT, RoutedEngine, any_request, wire_form};
use crate::harness::{Framing, RawClient};

/// The way a request is sent.
fn sending() -> impl Strategy<Value = (wire_form::Cuts, bool, bool)> {
    (wire_form::cuts(), any::<bool>(), any::<bool>())
}

#[test]
#[contract("I12")]
fn any_body_reaches_the_engine_byte_for_byte_however_it_is_cut_and_framed() {
    let pair = RoutedEngine::start();
    let config = ProptestConfig {
        cases: 60,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    };
    let cases = (any_request::body(), sending());
    let result = TestRunner::new(config).run(&cases, |(body, (cuts, chunked, expect))| {
        let mut client = pair.client();
        let framing = if chunked {
            Framing::Chunked
        } else {
            Framing::Length
        };
        let (framed, writes) = cuts.framed(framing, &body);
        let expectation = if expect {
            "Expect: 100-continue\r\n"
        } else {
            ""
        };
        client.send_bytes(
            format!("POST {CHAT} HTTP/1.1\r\nHost: router\r\n{expectation}{framed}\r\n").as_bytes(),
        );
        if expect {
            prop_assert_eq!(client.head().status, 100);
        }
        for write in writes {
            client.send_bytes(&write);
            std::thread::sleep(cuts.pause);
        }
        let reply = client.reply();
        prop_assert_eq!((reply.status, reply.clean), (200, true), "{}", reply.text());
        let seen = pair.engine.next_request();
        prop_assert_eq!(seen.header("content-length"), Some(body.len().to_string()));
        prop_assert_eq!(
            String::from_utf8_lossy(&seen.body),
            String::from_utf8_lossy(&body)
        );
        prop_assert_eq!(seen.body, body);
        pair.reuse(client);
        Ok(())
    });
    result.unwrap();
}

#[test]
fn the_query_of_a_request_is_forwarded() {
    let pair = RoutedEngine::start();
    let body = br#"{"model":"m","messages":[]}"#;
    assert_eq!(
        RawClient::post(
            &pair.router.data(),
            "/v1/chat/completions?trace=1&x=%20",
            body
        )
        .status,
        200
    );
    assert_eq!(
        pair.engine.next_request().line(),
        "POST /v1/chat/completions?trace=1&x=%20 HTTP/1.1"
    );
}

#[test]
fn a_chunked_body_with_extensions_and_trailers_is_sent_on_as_its_data() {
    let pair = RoutedEngine::start();
    let mut client = RawClient::connect(&pair.router.data());
    client.send_bytes(
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-t\r\n\r\n"
        )
        .as_bytes(),
    );
    client
        .send_bytes(b"e;name=\"a;b\"\r\n{\"model\":\"m\", \r\n0D\r\n\"messages\":[]\r\n1\r\n}\r\n0\r\nx-t: 1\r\n\r\n");
    assert_eq!(client.reply().status, 200);
    let seen = pair.engine.next_request();
    assert_eq!(seen.body, br#"{"model":"m", "messages":[]}"#);
    assert_eq!((seen.header("trailer"), seen.header("x-t")), (None, None));
}
