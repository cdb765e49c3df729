//! A stream of server-sent events over a real socket: events, errors, and reconnects.

use std::time::{Duration, Instant};

use contract_id::contract;
use event_sources::SseSpec;

use crate::stream_server::{HEAD, StreamServer, Watcher, event, hash};

#[tokio::test]
#[contract("CK43", "CK44")]
async fn the_five_event_kinds_reach_the_view_however_their_bytes_are_split() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&server.url());
    let mut stream = server.streaming().await;
    assert!(
        stream.head.starts_with("GET /v1/kv_events HTTP/1.1\r\n"),
        "{}",
        stream.head
    );
    assert!(
        stream.head.contains("accept: text/event-stream\r\n"),
        "{}",
        stream.head
    );

    let script = [
        ": a comment\r\n\r\nid: 7\r\nretry: 1\r\n".to_owned()
            + &event("cache_created", 1, 64).replace('\n', "\r\n"),
        event("cache_created", 2, 128),
        event("cache_created", 3, 32),
        event("cache_created", 4, 16),
        event("cache_evicted", 2, 0),
        event("cache_offloaded", 3, 0),
        event("cache_purged", 4, 0),
        event("cache_reloaded", 5, 8),
    ];
    for byte in script.concat().bytes() {
        stream.send(&[byte]).await;
    }
    // Without a second tier, a prefix that leaves the accelerator is gone.
    let report = watcher.until_resident(&[(1, 64), (5, 8)]).await;
    assert_eq!(
        (&*report.source, &*report.state, report.worker.as_ref()),
        ("sse", "live", "b1")
    );
    assert_eq!(
        (
            report.counts.events,
            report.counts.applied,
            report.counts.decode_errors
        ),
        (8, 8, 0)
    );
    let counters = watcher.source.counters();
    assert_eq!(
        (counters.stored, counters.removed, counters.reconnects),
        (5, 3, 0)
    );
    watcher.source.stop().await;
}

#[tokio::test]
#[contract("CK45")]
async fn an_event_without_a_token_count_keeps_the_known_count_or_assumes_the_default() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&server.url());
    let mut stream = server.streaming().await;
    stream.event("cache_created", 1, 700).await;
    for n in [1, 2] {
        let bare = format!(
            "event: cache_reloaded\ndata: {{\"prefix_hash\": \"{}\"}}\n\n",
            hash(n)
        );
        stream.send(bare.as_bytes()).await;
    }
    watcher.until_resident(&[(1, 700), (2, 256)]).await;
    watcher.source.stop().await;
}

#[tokio::test]
#[contract("CK46")]
async fn the_event_field_of_the_stream_wins_over_the_type_in_the_data() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&server.url());
    let mut stream = server.streaming().await;
    let data = |n, kind: &str| {
        format!(
            "data: {{\"event\": \"{kind}\", \"prefix_hash\": \"{}\", \"token_count\": 9}}",
            hash(n)
        )
    };
    stream.event("cache_created", 1, 9).await;
    stream
        .send(format!("event: cache_evicted\n{}\n\n", data(1, "cache_created")).as_bytes())
        .await;
    stream
        .send(format!("{}\n\n", data(2, "cache_created")).as_bytes())
        .await;
    watcher.until_resident(&[(2, 9)]).await;
    watcher.source.stop().await;
}

#[tokio::test]
#[contract("CK47")]
async fn an_event_over_a_mebibyte_is_dropped_counted_and_the_stream_continues() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&server.url());
    let mut stream = server.streaming().await;
    stream.event("cache_created", 1, 64).await;
    stream.send(b"event: cache_purged\ndata: ").await;
    let filler = vec![b'x'; 64 << 10];
    for _ in 0..32 {
        stream.send(&filler).await;
    }
    stream.send(b"\n\n").await;
    stream.event("cache_created", 2, 64).await;
    let report = watcher.until_resident(&[(1, 64), (2, 64)]).await;
    assert_eq!(
        (report.counts.dropped, report.counts.events, &*report.state),
        (1, 2, "live")
    );
    assert!(
        report
            .last_error
            .unwrap()
            .contains("more than 1048576 bytes")
    );
    watcher.source.stop().await;
}

#[tokio::test]
async fn garbage_is_counted_and_loses_only_its_own_event() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&server.url());
    let mut stream = server.streaming().await;
    stream.event("cache_created", 1, 64).await;
    let nested = format!("event: cache_created\ndata: {}\n\n", "[".repeat(100_000));
    for bad in [
        b"data: not json\n\n".as_slice(),
        b"event: cache_created\ndata: {}\n\n",
        b"event: cache_created\ndata: {\"prefix_hash\": \"xyz\"}\n\n",
        b"event: cache_created\ndata: {\"prefix_hash\": 5}\n\n",
        b"event: cache_created\ndata: \xff\xfe\n\n",
        nested.as_bytes(),
        b"\0\0\0garbage without a field\n\n",
    ] {
        stream.send(bad).await;
    }
    // A comment of the stream is no error.
    stream.send(b"event: snapshot_end\ndata: {}\n\n").await;
    stream.event("cache_created", 2, 64).await;
    let report = watcher.until_resident(&[(1, 64), (2, 64)]).await;
    assert_eq!(
        (
            report.counts.decode_errors,
            report.counts.ignored,
            &*report.state
        ),
        (6, 1, "live")
    );
    watcher.source.stop().await;
}

#[tokio::test]
async fn a_sender_of_only_garbage_is_quarantined() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&server.url());
    let mut stream = server.streaming().await;
    stream.event("cache_created", 1, 64).await;
    watcher.until_resident(&[(1, 64)]).await;
    for _ in 0..100 {
        stream.send(b"data: garbage\n\n").await;
    }
    let report = watcher
        .until("the quarantine", |report, resident| {
            report.state == "quarantined" && resident.is_empty()
        })
        .await;
    assert_eq!(report.counts.decode_errors, 100);
    stream.closed().await;
    watcher.source.stop().await;
}

#[tokio::test]
#[contract("CK48")]
async fn a_stream_that_ended_or_broke_off_is_requested_again() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&server.url());
    let mut stream = server.streaming().await;
    stream.event("cache_created", 1, 64).await;
    // An event cut off by the end does not count.
    stream
        .send(b"event: cache_purged\ndata: {\"prefix_hash\": \"0000000000000001\"}")
        .await;
    watcher.until_resident(&[(1, 64)]).await;
    drop(stream);
    watcher
        .until("the end", |report, _| report.state == "connecting")
        .await;

    let mut stream = server.streaming().await;
    stream.event("cache_created", 2, 64).await;
    watcher.until_resident(&[(1, 64), (2, 64)]).await;
    // Closing with a zero linger resets the connection.
    let socket = stream.stream.into_std().unwrap();
    tokio::net::TcpStream::from_std(socket)
        .unwrap()
        .set_zero_linger()
        .unwrap();

    let mut stream = server.streaming().await;
    stream.event("cache_created", 3, 64).await;
    let report = watcher.until_resident(&[(1, 64), (2, 64), (3, 64)]).await;
    assert_eq!(
        (&*report.state, watcher.source.counters().reconnects),
        ("live", 2)
    );
    watcher.source.stop().await;
}

#[tokio::test]
#[contract("CK42", "CK48")]
async fn the_first_pause_is_a_second_at_the_default_interval() {
    let server = StreamServer::bind().await;
    let defaults = SseSpec::new("b1", server.url().parse().unwrap());
    assert_eq!(defaults.reconnect_interval, Duration::from_secs(5));
    let watcher = Watcher::with(&server.url(), |spec| {
        spec.reconnect_interval = defaults.reconnect_interval
    });
    let stream = server.streaming().await;
    watcher
        .until("the connection", |report, _| report.state == "live")
        .await;
    let ended = started();
    drop(stream);
    server.next_request().await;
    assert!(
        (950..4_900).contains(&ended.elapsed().as_millis()),
        "{:?}",
        ended.elapsed()
    );
    watcher.source.stop().await;
}

#[expect(clippy::disallowed_methods, reason = "a test measures a wait")]
fn started() -> Instant {
    Instant::now()
}

#[tokio::test]
async fn a_reader_cut_off_as_too_slow_clears_its_prefixes() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&server.url());
    let mut stream = server.streaming().await;
    stream.event("cache_created", 1, 64).await;
    watcher.until_resident(&[(1, 64)]).await;
    stream.send(b"event: lagged\ndata: {}\n\n").await;
    let report = watcher.until_resident(&[]).await;
    assert_eq!(report.counts.gaps, 1);
    stream.closed().await;
    let mut stream = server.streaming().await;
    stream.event("cache_created", 2, 64).await;
    watcher.until_resident(&[(2, 64)]).await;
    watcher.source.stop().await;
}

#[tokio::test]
async fn a_stream_that_begins_with_a_snapshot_replaces_the_known_prefixes() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&format!("{}?snapshot=true", server.url()));
    let mut stream = server.streaming().await;
    stream.event("cache_created", 1, 64).await;
    watcher.until_resident(&[(1, 64)]).await;
    drop(stream);
    let mut stream = server.streaming().await;
    assert!(
        stream
            .head
            .starts_with("GET /v1/kv_events?snapshot=true HTTP/1.1\r\n"),
        "{}",
        stream.head
    );
    stream.event("cache_created", 2, 64).await;
    watcher.until_resident(&[(2, 64)]).await;
    watcher.source.stop().await;
}

#[tokio::test]
async fn a_reply_that_is_no_event_stream_is_named() {
    for (reply, message) in [
        (
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            "status 404: expected 200",
        ),
        (
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            "status 302",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 0\r\n\r\n",
            "content-type \"text/html\"",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "content-type \"\"",
        ),
        ("SSH-2.0-OpenSSH_9.2\r\n", "invalid HTTP version"),
    ] {
        let server = StreamServer::bind().await;
        let watcher = Watcher::follow(&server.url());
        let mut request = server.next_request().await;
        request.send(reply.as_bytes()).await;
        let report = watcher
            .until(message, |report, _| report.last_error.is_some())
            .await;
        let error = report.last_error.unwrap();
        assert!(
            error.contains(message) && error.contains(&server.port.to_string()),
            "{error}"
        );
        assert_eq!(report.state, "connecting");
        watcher.source.stop().await;
    }
}

#[tokio::test]
#[contract("S81")]
async fn a_token_is_sent_and_never_displayed() {
    let server = StreamServer::bind().await;
    let spec = SseSpec::new("b1", server.url().parse().unwrap())
        .bearer("geheim")
        .unwrap();
    assert!(!format!("{spec:?} {:?}", spec.authorization).contains("geheim"));
    let watcher = Watcher::with(&server.url(), |own| {
        own.authorization = spec.authorization.clone()
    });
    let request = server.next_request().await;
    assert!(
        request.head.contains("authorization: Bearer geheim\r\n"),
        "{}",
        request.head
    );
    assert!(
        SseSpec::new("b1", server.url().parse().unwrap())
            .bearer("two\nlines")
            .is_err()
    );
    watcher.source.stop().await;
}

#[tokio::test]
async fn a_quiet_stream_is_stale_until_its_next_event() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::with(&server.url(), |spec| {
        spec.settings.stale_after = Duration::from_millis(200)
    });
    let mut stream = server.streaming().await;
    watcher
        .until("staleness", |report, _| report.state == "stale")
        .await;
    stream.event("cache_created", 1, 64).await;
    watcher
        .until("life", |report, _| report.state == "live")
        .await;
    watcher.source.stop().await;
}

#[tokio::test]
async fn stopping_closes_the_connection_and_keeps_the_known_prefixes() {
    let server = StreamServer::bind().await;
    let watcher = Watcher::follow(&server.url());
    let mut stream = server.next_request().await;
    stream.send(HEAD).await;
    stream.event("cache_created", 1, 64).await;
    watcher.until_resident(&[(1, 64)]).await;
    let Watcher { view, source } = watcher;
    source.stop().await;
    stream.closed().await;
    assert_eq!(prefix_view::PrefixIndex::stats(&*view).entries, 1);
}
