//! Requests whose end two servers could see in different places: refused with their connection, so
//! that nothing behind them becomes a request.

use contract_id::contract;

use crate::{
    faults::fleet::{CHAT, ScriptedFleet, fine},
    harness::{Program, RawClient, RouterQueries as _, ScriptedReply, SeenRequest, chat},
};

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// With this status, and the connection closes without another reply.
    Closed(u16),
    /// With this status, and the request behind it is answered too.
    Kept(u16),
}
use Outcome::{Closed, Kept};

/// A request, from the end of its request line on.
struct Case {
    name: &'static str,
    rest: Vec<u8>,
    outcome: Outcome,
}

fn case(name: &'static str, outcome: Outcome, fields: &str, body: impl AsRef<[u8]>) -> Case {
    let head = format!(" HTTP/1.1\r\nhost: 127.0.0.1\r\n{fields}\r\n");
    Case {
        name,
        rest: [head.as_bytes(), body.as_ref()].concat(),
        outcome,
    }
}

/// One chunk of `body`, whose size line and data end as given.
fn chunk(size: &str, body: &str, end: &str) -> String {
    format!("{size}{body}{end}0\r\n\r\n")
}

/// Heads that are valid or not, whatever the route does with the body.
fn heads(body: &str) -> Vec<Case> {
    let length = body.len();
    let size = format!("{length:x}\r\n");
    let chunked = chunk(&size, body, "\r\n");
    let te = "transfer-encoding: chunked\r\n";
    let cl = format!("content-length: {length}\r\n");
    let with_length = |name, value: &str| {
        case(
            name,
            Closed(400),
            &format!("content-length:{value}\r\n"),
            body,
        )
    };
    let with_encoding = |name, value: &str| {
        case(
            name,
            Closed(400),
            &format!("transfer-encoding:{value}\r\n"),
            &chunked,
        )
    };
    let version = |name, outcome, fields: &str, body: &str| Case {
        name,
        rest: format!(
            " HTTP/1.0\r\nhost: 127.0.0.1\r\nconnection: keep-alive\r\n{fields}\r\n{body}"
        )
        .into_bytes(),
        outcome,
    };
    vec![
        case(
            "a length and an encoding",
            Closed(400),
            &format!("{cl}{te}"),
            &chunked,
        ),
        case(
            "an encoding and a length",
            Closed(400),
            &format!("{te}{cl}"),
            &chunked,
        ),
        case(
            "an encoding, a length of 0",
            Closed(400),
            &format!("content-length: 0\r\n{te}"),
            &chunked,
        ),
        case(
            "an encoding twice",
            Closed(400),
            &format!("{te}{te}"),
            &chunked,
        ),
        case(
            "an encoding, then identity",
            Closed(400),
            &format!("{te}transfer-encoding: identity\r\n"),
            &chunked,
        ),
        case(
            "identity, then chunked",
            Closed(400),
            &format!("transfer-encoding: identity\r\n{te}"),
            &chunked,
        ),
        with_encoding("gzip and chunked", " gzip, chunked"),
        with_encoding("chunked and identity", " chunked, identity"),
        with_encoding("an unknown encoding", " xchunked"),
        with_encoding("a parameter", " chunked;q=1"),
        with_encoding("a tab", "\tchunked"),
        with_encoding("quotes", " \"chunked\""),
        with_encoding("a vertical tab", " \x0bchunked"),
        with_encoding("an empty encoding", ""),
        with_encoding("a folded encoding", "\r\n chunked"),
        case(
            "a space before the colon",
            Closed(400),
            "transfer-encoding : chunked\r\n",
            &chunked,
        ),
        case(
            "a folded field",
            Closed(400),
            &format!("x-a: 1\r\n b\r\n{cl}"),
            body,
        ),
        case(
            "the same length twice",
            Closed(400),
            &format!("{cl}{cl}"),
            body,
        ),
        case(
            "two lengths",
            Closed(400),
            &format!("content-length: 0\r\n{cl}"),
            body,
        ),
        with_length("a sign", &format!(" +{length}")),
        with_length("a minus", &format!(" -{length}")),
        with_length("a list", &format!(" {length}, {length}")),
        with_length("a list of two", &format!(" {length},0")),
        with_length("a hexadecimal length", &format!(" 0x{length:x}")),
        with_length("spaces around it", &format!("  {length} ")),
        with_length("a space in it", &format!(" {length} 0")),
        with_length("no digits", ""),
        with_length("more than 19 digits", &format!(" {length:020}")),
        with_length("2^64", " 18446744073709551616"),
        case(
            "a NUL in a value",
            Closed(400),
            &format!("x-a: 1\0\r\n{cl}"),
            body,
        ),
        case(
            "a CR in a value",
            Closed(400),
            &format!("x-a: 1\r{cl}"),
            body,
        ),
        case(
            "a bare LF after a field",
            Closed(400),
            &format!("x-a: 1\n{cl}"),
            body,
        ),
        case(
            "a bare LF in a length",
            Closed(400),
            &format!("content-length: {length}\n"),
            body,
        ),
        version("HTTP/1.0 with an encoding", Closed(400), te, &chunked),
        // Valid ones: without them the cases above would show nothing.
        case("a length", Kept(200), &cl, body),
        case("an encoding", Kept(200), te, &chunked),
        case(
            "an encoding in capitals",
            Kept(200),
            "TRANSFER-ENCODING: Chunked\r\n",
            &chunked,
        ),
        version("HTTP/1.0 with a length", Kept(200), &cl, body),
    ]
}

/// Chunked bodies that are valid or not.
fn chunks(body: &str) -> Vec<Case> {
    let te = "transfer-encoding: chunked\r\n";
    let size = format!("{:x}", body.len());
    let line = |end: &str| format!("{size}{end}");
    let with =
        |name, outcome, size: &str, end: &str| case(name, outcome, te, chunk(size, body, end));
    let ended = |name, end: &str| case(name, Closed(400), te, format!("{size}\r\n{body}\r\n{end}"));
    vec![
        with("a short extension", Kept(200), &line(";a=b\r\n"), "\r\n"),
        with(
            "an extension with a bare LF",
            Closed(400),
            &line(";a\nb\r\n"),
            "\r\n",
        ),
        with(
            "an extension of 1 MiB",
            Closed(400),
            &line(&format!(";{}\r\n", "a".repeat(1 << 20))),
            "\r\n",
        ),
        with("a bare LF after the size", Closed(400), &line("\n"), "\r\n"),
        with(
            "17 digits",
            Closed(400),
            &format!("{:017x}\r\n", body.len()),
            "\r\n",
        ),
        with("2^64", Closed(400), "10000000000000000\r\n", "\r\n"),
        with("a prefix", Closed(400), &format!("0x{size}\r\n"), "\r\n"),
        with("a sign", Closed(400), &format!("+{size}\r\n"), "\r\n"),
        with("a minus", Closed(400), "-1\r\n", "\r\n"),
        with("no size", Closed(400), "\r\n", "\r\n"),
        with("a letter", Closed(400), "g\r\n", "\r\n"),
        with(
            "a space before the size",
            Closed(400),
            &format!(" {size}\r\n"),
            "\r\n",
        ),
        with("a size that is too small", Closed(400), "2\r\n", "\r\n"),
        with("no CRLF after the data", Closed(400), &line("\r\n"), ""),
        with("a bare LF after the data", Closed(400), &line("\r\n"), "\n"),
        ended("a trailer with a bare LF", "0\r\nx-a: 1\n\r\n"),
        ended("a bare LF at the end", "0\n\n"),
        case(
            "a trailer",
            Kept(200),
            te,
            format!("{size}\r\n{body}\r\n0\r\nx-a: 1\r\n\r\n"),
        ),
    ]
}

/// A body of an operator's request.
const BODY: &str = r#"{"none":1}"#;

/// Sends the request and `after` at once, and compares the outcome.
fn check(address: &str, line: &str, after: &[u8], case: &Case) {
    let mut client = RawClient::connect(address);
    // The connection may be closed before all of it is sent.
    let _ = client.offer_bytes(&[line.as_bytes(), &case.rest, after].concat());
    let status = client.reply().status;
    let found = if client.is_closed() {
        Closed(status)
    } else {
        Kept(status)
    };
    assert_eq!(found, case.outcome, "{}", case.name);
}

#[test]
#[contract("S19", "S20", "S23", "S25", "S26", "G15")]
fn nothing_behind_an_ambiguous_request_becomes_a_request_of_a_client() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let data = scripted.router.data();
    let body = chat("m", "hi", 1).to_string();
    let after = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut served = 0;
    for case in heads(&body).into_iter().chain(chunks(&body)) {
        check(&data, &format!("POST {CHAT}"), after.as_bytes(), &case);
        served += match case.outcome {
            Kept(_) => 2,
            Closed(_) => 0,
        };
        assert_eq!(scripted.requests(), served, "{}", case.name);
    }
    // A body that two servers would see differently, in reads of their own.
    let mut client = RawClient::connect(&data);
    for part in [
        format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-le"),
        "ngth: 6\r\ntransfer-enc".to_owned(),
        "oding: chunked\r\n\r\n0\r\n\r\nG".to_owned(),
    ] {
        client.send_bytes(part.as_bytes());
        std::thread::yield_now();
    }
    let reply = client.reply();
    assert_eq!(
        (reply.status, reply.error_code()),
        (400, "invalid_request".to_owned())
    );
    assert!(
        reply
            .text()
            .contains("both Content-Length and Transfer-Encoding")
    );
    assert!(client.is_closed());
    // Without a length there is no body, also in HTTP/1.0.
    let mut client = RawClient::connect(&data);
    client.send_bytes(format!("POST {CHAT} HTTP/1.0\r\nhost: a\r\n\r\n{after}").as_bytes());
    assert_eq!(client.reply().status, 400);
    assert!(client.is_closed());
    assert_eq!(scripted.requests(), served);
}

/// Checks that an upstream request has one reading: its only length is that of its body.
fn assert_unambiguous(seen: &SeenRequest, body: &str, stream: &str) {
    assert_eq!(seen.line(), format!("POST {CHAT} HTTP/1.1"), "{stream}");
    let of_name = |wanted: &str| {
        let fields = seen.headers().into_iter();
        fields.filter(|(name, _)| name == wanted).count()
    };
    let length = seen.header("content-length");
    assert_eq!(length, Some(body.len().to_string()), "{stream}");
    let counts = ["content-length", "transfer-encoding", "host"].map(of_name);
    assert_eq!(counts, [1, 0, 1], "{stream}");
    assert_eq!(String::from_utf8_lossy(&seen.body), body, "{stream}");
    let head = String::from_utf8_lossy(&seen.head).replace("\r\n", "");
    assert!(!head.contains(['\r', '\n', '\0']), "{stream}");
}

#[test]
#[contract("S24", "G15")]
fn each_of_500_streams_reaches_the_engine_as_the_requests_that_were_answered() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let (data, engine) = (scripted.router.data(), &scripted.engines[0]);
    let body = chat("m", "hi", 1).to_string();
    let all: Vec<_> = heads(&body).into_iter().chain(chunks(&body)).collect();
    let last = case(
        "a length",
        Kept(200),
        &format!("content-length: {}\r\n", body.len()),
        &body,
    );
    let line = format!("POST {CHAT}");
    let mut streams = 0;
    for first in &all {
        for second in all.iter().step_by(6) {
            streams += 1;
            let stream = format!("{}, {}", first.name, second.name);
            let mut client = RawClient::connect(&data);
            let requests = [first, second, &last].map(|it| [line.as_bytes(), &it.rest].concat());
            // The connection may be closed before all of it is sent.
            let _ = client.offer_bytes(&requests.concat());
            for request in [first, second, &last] {
                let status = client.reply().status;
                match request.outcome {
                    Kept(expected) => {
                        assert_eq!(status, expected, "{stream}");
                        assert_unambiguous(&engine.next_request(), &body, &stream);
                    }
                    Closed(expected) => {
                        assert_eq!(status, expected, "{stream}");
                        assert!(client.is_closed(), "{stream}");
                        break;
                    }
                }
            }
            assert!(engine.seen_lines().is_empty(), "{stream}");
        }
    }
    assert!(streams >= 400, "{streams}");
}

#[test]
#[contract("S22")]
fn a_request_behind_one_that_asks_for_an_upgrade_is_checked_too() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let data = scripted.router.data();
    let body = chat("m", "hi", 1).to_string();
    let ambiguous = heads(&body).swap_remove(0);
    let upgrade = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: {}\r\n\r\n{body}POST {CHAT}",
        body.len()
    );
    let mut client = RawClient::connect(&data);
    client.send_bytes(&[upgrade.as_bytes(), &ambiguous.rest].concat());
    assert_eq!(client.reply().status, 200);
    assert_eq!(client.reply().status, 400);
    assert!(client.is_closed());
    assert_eq!(scripted.requests(), 1);
}

#[test]
#[contract("S19", "S20", "S25", "G15")]
fn nothing_behind_an_ambiguous_request_becomes_a_request_of_an_operator() {
    let engine = crate::harness::ScriptedEngine::start(ScriptedReply::whole(fine()));
    let router = Program::serve_with("", &[engine.url()], &[]).ready(1);
    let admin = router.admin();
    let after = b"DELETE /admin/workers/w0 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    let workers = || RawClient::get(&admin, "/admin/workers").text();
    let before = workers();
    let ambiguous = |case: &Case| matches!(case.outcome, Closed(_));
    for case in heads(BODY).into_iter().filter(ambiguous) {
        check(&admin, "GET /admin/workers", after, &case);
    }
    for case in chunks(BODY).into_iter().filter(ambiguous) {
        let mut client = RawClient::connect(&admin);
        let all = [b"POST /admin/reload".as_slice(), &case.rest, after].concat();
        let _ = client.offer_bytes(&all);
        client.reply();
        assert!(client.is_closed(), "{}", case.name);
    }
    assert_eq!(workers(), before);
}
