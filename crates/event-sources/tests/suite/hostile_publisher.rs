//! A publisher that sends garbage harms only its own connection and its own target.

use std::{io::Write, net::TcpListener};

use contract_id::contract;

use crate::engine::{PATIENCE, TestSource, any, live, publisher, stored};

/// Returns the bytes of a ZMTP 3.1 greeting and a PUB's READY.
fn handshake() -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    bytes.extend_from_slice(b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB");
    bytes
}

#[tokio::test]
#[contract("F58")]
async fn garbage_is_counted_and_loses_only_its_own_batch() {
    let (engine, endpoint) = publisher(&any()).await;
    let reader = TestSource::follow(&endpoint, None);
    reader.until_subscribed(&engine).await;

    engine.send(&live(0, &stored(1)));
    engine.send(&live(1, b"\xc1 not msgpack"));
    engine.send(&live(2, &[]));
    engine.send(&[b"one frame"]);
    engine.send(&[b"".to_vec(), vec![1, 2, 3], stored(3)]);
    engine.send(&live(
        3,
        include_bytes!("../../../../tests/fixtures/kv_events/bad_nested_arrays_100k.msgpack"),
    ));
    engine.send(&live(
        4,
        include_bytes!("../../../../tests/fixtures/kv_events/bad_huge_array_header.msgpack"),
    ));
    engine.send(&live(5, &stored(2)));
    let report = reader.until_resident(&[1, 2]).await;
    assert_eq!((&*report.state, report.last_seq), ("live", Some(5)));
    assert_eq!(report.counts.decode_errors, 6);
    assert_eq!(reader.source.counters().decode_errors, 6);
    assert!(report.last_error.is_some());
    reader.source.stop().await;
}

#[tokio::test]
async fn a_frame_header_of_an_absurd_length_ends_only_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let server = std::thread::spawn(move || {
        let mut open = Vec::new();
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = handshake();
            bytes.push(0b011);
            bytes.extend_from_slice(&(1_u64 << 62).to_be_bytes());
            stream.write_all(&bytes).unwrap();
            open.push(stream);
        }
        open
    });
    let reader = TestSource::follow(&endpoint, None);
    let report = reader
        .until("the refusal", |report, _| report.last_error.is_some())
        .await;
    assert!(
        report
            .last_error
            .unwrap()
            .contains("message of at least 4611686018427387904 bytes")
    );
    // A second connection proves that the source closed the first one: the server held it open.
    let open = tokio::task::spawn_blocking(|| server.join().unwrap());
    assert_eq!(
        tokio::time::timeout(PATIENCE, open)
            .await
            .unwrap()
            .unwrap()
            .len(),
        2
    );
    reader.source.stop().await;
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_and_the_stream_recovers() {
    let (engine, endpoint) = publisher(&any()).await;
    let reader = TestSource::with(&endpoint, None, |spec| spec.settings.max_message = 4096);
    reader.until_subscribed(&engine).await;
    engine.send(&live(0, &stored(1)));
    reader.until_resident(&[1]).await;
    let mut subscribers = engine.watch_subscribers();
    engine.send(&live(1, &[0; 5000]));
    tokio::time::timeout(PATIENCE, subscribers.wait_for(|count| *count == 0))
        .await
        .unwrap()
        .unwrap();
    let refused = |error: &String| error.contains("at most 4096 are accepted");
    reader
        .until("the refusal", |report, _| {
            report.last_error.as_ref().is_some_and(refused)
        })
        .await;

    reader.until_subscribed(&engine).await;
    engine.send(&live(2, &stored(2)));
    reader.until_resident(&[1, 2]).await;
    reader.source.stop().await;
}

#[tokio::test]
#[contract("F58")]
async fn a_publisher_that_sends_only_garbage_is_quarantined() {
    let (engine, endpoint) = publisher(&any()).await;
    let reader = TestSource::follow(&endpoint, None);
    reader.until_subscribed(&engine).await;
    engine.send(&live(0, &stored(1)));
    reader.until_resident(&[1]).await;
    let mut subscribers = engine.watch_subscribers();
    for seq in 1..=99 {
        engine.send(&live(seq, b"garbage"));
    }
    let report = reader
        .until("99 errors", |report, _| report.counts.decode_errors == 99)
        .await;
    assert_eq!((&*report.state, reader.resident()), ("live", vec![1]));

    engine.send(&live(100, b"garbage"));
    let report = reader
        .until("the quarantine", |report, _| report.state == "quarantined")
        .await;
    assert_eq!(report.counts.decode_errors, 100);
    assert_eq!(
        reader.resident(),
        [0; 0],
        "its blocks are not credited any more"
    );
    tokio::time::timeout(PATIENCE, subscribers.wait_for(|count| *count == 0))
        .await
        .unwrap()
        .unwrap();
    reader.source.stop().await;
}
