//! The same calls in msgpack, for clients that use only it.

use contract_id::contract;
use rmp::encode;
use serde_json::{Value, json};

use crate::indexer_fixture::{
    self, CallReply, IndexerFixture, StoredSequence, TestPublisher, on_gpu,
};

enum MsgpackPart<'a> {
    Text(&'a str),
    Number(u64),
    List(&'a [u64]),
    Bytes(&'a [u8]),
}

fn map(fields: &[(&str, MsgpackPart<'_>)]) -> Vec<u8> {
    let mut out = Vec::new();
    encode::write_map_len(&mut out, u32::try_from(fields.len()).unwrap()).unwrap();
    for (name, part) in fields {
        encode::write_str(&mut out, name).unwrap();
        match part {
            MsgpackPart::Text(text) => encode::write_str(&mut out, text).unwrap(),
            MsgpackPart::Number(number) => drop(encode::write_uint(&mut out, *number).unwrap()),
            MsgpackPart::Bytes(bytes) => encode::write_bin(&mut out, bytes).unwrap(),
            MsgpackPart::List(list) => {
                encode::write_array_len(&mut out, u32::try_from(list.len()).unwrap()).unwrap();
                for number in *list {
                    encode::write_uint(&mut out, *number).unwrap();
                }
            }
        }
    }
    out
}

async fn call(fixture: &IndexerFixture, path: &str, accept: &str, body: Vec<u8>) -> CallReply {
    fixture
        .post_bytes(
            path,
            &[("content-type", "application/msgpack"), ("accept", accept)],
            body,
        )
        .await
}

#[tokio::test]
#[contract("MC1", "MC3", "MC5")]
async fn a_publisher_is_registered_and_queried_in_msgpack() {
    let fixture = IndexerFixture::open();
    let one = TestPublisher::bind().await;
    let registration = map(&[
        ("endpoint", MsgpackPart::Text(&one.endpoint)),
        ("type", MsgpackPart::Text("vLLM")),
        ("modelname", MsgpackPart::Text("m")),
        ("instance_id", MsgpackPart::Text("i")),
        ("block_size", MsgpackPart::Number(4)),
        ("dp_rank", MsgpackPart::Number(0)),
    ]);
    assert_eq!(
        call(&fixture, "/register", "application/json", registration)
            .await
            .status,
        200
    );
    one.until_followed_by(1).await;
    one.store(&StoredSequence {
        tokens: &[300_000; 8],
        ..StoredSequence::default()
    });
    fixture
        .until(
            "/query",
            &indexer_fixture::query(&[300_000; 8], &json!({})),
            &json!({"default": {"i": on_gpu(8)}}),
        )
        .await;

    let chain = kv_blocks::HashScheme::default().chain(
        None,
        &[300_000; 8],
        kv_blocks::BlockSize::new(4).unwrap(),
    );
    let hashes: Vec<u64> = chain.iter().map(|hash| hash.0).collect();
    let packed: Vec<u8> = [300_000_u32; 8]
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect();
    let request = |field, part| {
        map(&[
            ("model", MsgpackPart::Text("m")),
            ("block_size", MsgpackPart::Number(4)),
            (field, part),
        ])
    };
    for (path, body) in [
        (
            "/query",
            request("token_ids", MsgpackPart::List(&[300_000; 8])),
        ),
        ("/query", request("token_ids", MsgpackPart::Bytes(&packed))),
        (
            "/query_by_hash",
            request("seq_hashes", MsgpackPart::List(&hashes)),
        ),
    ] {
        let shown = call(&fixture, path, "application/json", body.clone()).await;
        assert_eq!(
            (shown.json(), shown.kind.as_str()),
            (json!({"default": {"i": on_gpu(8)}}), "application/json")
        );
        let answer = call(&fixture, path, "*/*", body).await;
        assert_eq!(
            (answer.status, answer.kind.as_str()),
            (200, "application/msgpack")
        );
        // {"default": {"i": {"longest_matched": 8, ...
        let begins = [
            b"\x81\xa7default\x81\xa1i\x85\xaflongest_matched\x08".as_slice(),
            b"\xa3GPU\x08",
        ]
        .concat();
        assert!(answer.bytes.starts_with(&begins), "{:x?}", answer.bytes);
    }
}

#[tokio::test]
async fn errors_are_also_in_msgpack() {
    let fixture = IndexerFixture::open();
    let answer = call(
        &fixture,
        "/unregister",
        "*/*",
        map(&[("instance_id", MsgpackPart::Text("i"))]),
    )
    .await;
    assert_eq!(
        (answer.status, answer.kind.as_str()),
        (400, "application/msgpack")
    );
    assert!(
        answer.bytes.ends_with(b"\xa5field\xa7dp_rank"),
        "{:x?}",
        answer.bytes
    );
    let shown = call(
        &fixture,
        "/unregister",
        "application/json",
        map(&[("dp_rank", MsgpackPart::Number(0))]),
    )
    .await;
    assert_eq!(shown.error(), (400, Value::from("instance_id")));
}
