//! A stream of envelopes of the standard contract (RFC 1527) over server-sent events, for the block
//! index.

use std::{sync::Arc, time::Duration};

use contract_id::contract;
use event_sources::{SourceHandle, StandardSink, StandardSinkSpec};
use kv_blocks::{DpRank, HashScheme, Target, WorkerId};
use kv_events::standard::StreamKey;
use kv_index::{IndexSettings, KvIndex};
use serde_json::{Value, json};

use crate::{
    residency::{self, BLOCK, namespace, plain, resident_of, until, until_resident},
    stream_server::{ReceivedRequest, StreamServer, follow},
};

const TARGET: Target = Target {
    worker: WorkerId(5),
    rank: DpRank(0),
};

fn start(url: &str, scheme: HashScheme) -> (SourceHandle, Arc<KvIndex>) {
    let index = Arc::new(KvIndex::new(IndexSettings::default()));
    let registration = StreamKey {
        model: Some("m".into()),
        block_size: Some(BLOCK),
        ..StreamKey::default()
    };
    let spec = StandardSinkSpec {
        id: TARGET.worker,
        registration,
        scheme,
    };
    let sink = StandardSink::new(spec, Arc::clone(&index));
    (follow(url, Box::new(sink), |_| {}), index)
}

/// Returns an envelope that names the root block of tokens `n, n, n, n`.
fn envelope(id: u64, kind: &str, n: u32, more: &Value) -> Value {
    let mut event =
        json!({"event_id": id, "event_type": kind, "medium": "gpu", "seq_hashes": [plain(n).0]});
    if kind == "stored" {
        event["base_block_idx"] = json!(0);
    }
    event
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    event
}

async fn send(stream: &mut ReceivedRequest, event: &Value) {
    stream
        .send(format!("event: cache_created\ndata: {event}\n\n").as_bytes())
        .await;
}

#[tokio::test]
#[contract("MC13")]
async fn blocks_of_envelopes_are_found_by_their_tokens() {
    let server = StreamServer::bind().await;
    let (source, index) = start(&server.url(), HashScheme::default());
    let mut stream = server.streaming().await;
    for n in 0..3 {
        send(
            &mut stream,
            &envelope(n, "stored", u32::try_from(n).unwrap(), &json!({})),
        )
        .await;
    }
    send(
        &mut stream,
        &envelope(0, "stored", 4, &json!({"medium": "cpu"})),
    )
    .await;
    send(&mut stream, &envelope(3, "removed", 1, &json!({}))).await;
    stream.send(b"event: snapshot_end\ndata: {}\n\n").await;
    let report = until_resident(
        &source,
        &index,
        TARGET,
        &[(0, "device"), (2, "device"), (4, "host")],
    )
    .await;
    assert_eq!(
        (&*report.source, &*report.state, report.counts.decode_errors),
        ("sse", "live", 0)
    );
    // If an envelope has tokens and hashes, they must agree.
    send(
        &mut stream,
        &envelope(4, "stored", 5, &json!({"token_ids": [5, 5, 5, 5]})),
    )
    .await;
    send(
        &mut stream,
        &envelope(5, "stored", 6, &json!({"token_ids": [7, 7, 7, 7]})),
    )
    .await;
    let report = until(&source, "the mismatch", |report| {
        report.counts.decode_errors == 1
    })
    .await;
    assert!(report.last_error.unwrap().contains("token_ids give"));
    until_resident(
        &source,
        &index,
        TARGET,
        &[(0, "device"), (2, "device"), (4, "host"), (5, "device")],
    )
    .await;
    // Only this stream's blocks are cleared: those on the host stay.
    send(
        &mut stream,
        &json!({"event_id": 6, "event_type": "cleared", "medium": "gpu"}),
    )
    .await;
    until_resident(&source, &index, TARGET, &[(4, "host")]).await;
    source.stop().await;
}

#[tokio::test]
#[contract("MC8")]
async fn an_event_out_of_order_waits_and_a_missing_one_becomes_a_hole() {
    let server = StreamServer::bind().await;
    let (source, index) = start(&server.url(), HashScheme::default());
    let mut stream = server.streaming().await;
    for (id, kind, n) in [
        (0, "stored", 1),
        (2, "removed", 2),
        (1, "stored", 2),
        (1, "stored", 2),
        (5, "stored", 3),
    ] {
        send(&mut stream, &envelope(id, kind, n, &json!({}))).await;
    }
    let report = until(&source, "the duplicate", |report| {
        report.counts.duplicates == 1
    })
    .await;
    assert_eq!(
        residency::resident(&index, TARGET),
        [(1, "device")],
        "{report:?}"
    );
    // Numbers 3 and 4 count as lost after a while.
    let report = until_resident(&source, &index, TARGET, &[(1, "device"), (3, "device")]).await;
    assert_eq!(report.counts.gaps, 1, "{report:?}");
    source.stop().await;
}

#[tokio::test]
async fn a_restarted_stream_replaces_only_its_own_blocks() {
    let server = StreamServer::bind().await;
    let (source, index) = start(&server.url(), HashScheme::default());
    let mut stream = server.streaming().await;
    for n in 0..3_u32 {
        send(&mut stream, &envelope(n.into(), "stored", n, &json!({}))).await;
        send(
            &mut stream,
            &envelope(n.into(), "stored", n + 4, &json!({"medium": "disk"})),
        )
        .await;
    }
    until(&source, "six events", |report| report.counts.applied == 6).await;
    drop(stream);
    let mut stream = server.streaming().await;
    send(&mut stream, &envelope(0, "stored", 9, &json!({}))).await;
    until_resident(
        &source,
        &index,
        TARGET,
        &[(4, "disk"), (5, "disk"), (6, "disk"), (9, "device")],
    )
    .await;
    let report = until(&source, "the restart", |report| report.counts.restarts == 1).await;
    assert_eq!(report.state, "live");
    source.stop().await;
}

#[tokio::test]
async fn another_model_is_ignored_and_another_rank_is_another_target() {
    let server = StreamServer::bind().await;
    let (source, index) = start(&server.url(), HashScheme::default());
    let mut stream = server.streaming().await;
    send(
        &mut stream,
        &envelope(0, "stored", 1, &json!({"model_name": "other"})),
    )
    .await;
    send(
        &mut stream,
        &envelope(0, "stored", 2, &json!({"dp_rank": 1})),
    )
    .await;
    send(&mut stream, &envelope(0, "stored", 3, &json!({}))).await;
    until_resident(&source, &index, TARGET, &[(3, "device")]).await;
    let second = Target {
        rank: DpRank(1),
        ..TARGET
    };
    assert_eq!(residency::resident(&index, second), [(2, "device")]);
    assert_eq!(resident_of(&index, TARGET, &namespace("other")), []);
    let report = source.report();
    assert_eq!((report.counts.applied, report.counts.ignored), (2, 1));
    assert!(report.last_error.unwrap().contains("another model"));
    source.stop().await;
}

#[tokio::test]
#[contract("MC13")]
async fn hashes_of_another_scheme_are_refused_with_the_reason() {
    let server = StreamServer::bind().await;
    let (source, index) = start(&server.url(), HashScheme::Fnv1a);
    let mut stream = server.streaming().await;
    send(&mut stream, &envelope(0, "stored", 1, &json!({}))).await;
    let report = until(&source, "the refusal", |report| report.counts.ignored == 1).await;
    assert!(report.last_error.unwrap().contains("block_hash: xxh3"));
    assert_eq!(residency::resident(&index, TARGET), []);
    source.stop().await;
}

#[tokio::test]
async fn garbage_loses_only_itself_and_a_lagged_event_clears_the_target() {
    let server = StreamServer::bind().await;
    let (source, index) = start(&server.url(), HashScheme::default());
    let mut stream = server.streaming().await;
    send(&mut stream, &envelope(0, "stored", 1, &json!({}))).await;
    send(&mut stream, &json!({"event_type": "stored"})).await;
    send(&mut stream, &json!(17)).await;
    let list = json!([
        envelope(1, "stored", 2, &json!({})),
        4,
        envelope(2, "stored", 3, &json!({}))
    ]);
    send(&mut stream, &list).await;
    until_resident(
        &source,
        &index,
        TARGET,
        &[(1, "device"), (2, "device"), (3, "device")],
    )
    .await;
    assert_eq!(source.report().counts.decode_errors, 3);
    stream.send(b"event: lagged\ndata: {}\n\n").await;
    until_resident(&source, &index, TARGET, &[]).await;
    tokio::time::timeout(Duration::from_secs(120), stream.closed())
        .await
        .unwrap();
    source.stop().await;
}
