//! Replies in an object store, seen in its files.

use std::fs;

use contract_id::contract;
use response_cache::{CacheLookup, CacheSelection};

use crate::{StartedCache, key, s3_server::S3Server, start, until};

const CORRUPT: &str = "warmroute_s3_errors_total{code=\"corrupt\"}";

/// A cache whose first tier holds nothing, so that the object store answers.
fn object_store_only(server: &S3Server, more: &str) -> StartedCache {
    start(&format!(
        "lookup_budget: 20s, backend: tiered, l1: {{max_value_size: 1}}, l2: {{{}}}, {more}",
        server.l2()
    ))
}

fn name(number: u8) -> String {
    format!("response-cache/{}", key(number))
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CH23", "CH25")]
async fn a_reply_is_an_object_under_prefix_and_hex_with_its_expiry() {
    let server = S3Server::start();
    let cache = object_store_only(&server, "ttl: 100s");
    let before = u64::try_from(net::Clock::system().unix_s()).unwrap();
    cache.insert_and_find(key(1), b"answer").await;
    assert_eq!(server.names(), [name(1)]);
    let metadata = server.metadata();
    let digits = metadata
        .split_once("expires-at")
        .unwrap()
        .1
        .trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let at: u64 = digits
        .split(|letter: char| !letter.is_ascii_digit())
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!((before + 100..=before + 160).contains(&at), "{metadata}");
    assert_eq!(
        cache.metric("continuum_cache_tier_requests_total{tier=\"l2\",result=\"hit\"}"),
        1.0
    );
    assert!(cache.metric("continuum_cache_s3_latency_seconds_count{operation=\"put\"}") >= 1.0);
    assert!(cache.metric("continuum_cache_s3_latency_seconds_count{operation=\"get\"}") >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CH25", "CH23")]
async fn an_expired_object_is_removed_by_a_lookup() {
    let server = S3Server::start();
    // Its own time, not that of the first tier.
    let l2 = format!("{}, ttl_override: 3s", server.l2());
    let cache = start(&format!(
        "lookup_budget: 20s, ttl: 1h, backend: tiered, l1: {{max_value_size: 1}}, l2: {{{l2}}}"
    ));
    cache.insert_and_find(key(1), b"answer").await;
    cache.until_removed(key(1)).await;
    assert_eq!(server.names(), [""; 0]);
    assert!(cache.metric("continuum_cache_s3_latency_seconds_count{operation=\"delete\"}") >= 1.0);
    assert_eq!(cache.metric(CORRUPT), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CH25", "F51", "S46")]
async fn an_object_without_expiry_or_altered_or_moved_is_a_miss_and_is_removed() {
    let server = S3Server::start();
    let cache = object_store_only(&server, "mac_key: fleet");
    cache.insert_and_find(key(1), &[b'a'; 5_000]).await;
    server.forget_metadata();
    assert_eq!(cache.get(&key(1)).await, CacheLookup::NotFound);
    assert_eq!((server.names(), cache.metric(CORRUPT)), (Vec::new(), 1.0));

    cache.insert_and_find(key(2), &[b'a'; 5_000]).await;
    let file = server.file(&name(2));
    let mut bytes = fs::read(&file).unwrap();
    bytes[3_000] ^= 1;
    fs::write(&file, &bytes).unwrap();
    assert_eq!(cache.get(&key(2)).await, CacheLookup::NotFound);
    assert_eq!((server.names(), cache.metric(CORRUPT)), (Vec::new(), 2.0));

    cache.insert_and_find(key(3), b"answer").await;
    cache.insert_and_find(key(4), b"of another").await;
    fs::copy(server.file(&name(3)), server.file(&name(4))).unwrap();
    assert_eq!(cache.get(&key(4)).await, CacheLookup::NotFound);
    assert_eq!(server.names(), [name(3)]);
    assert!(cache.metric("warmroute_cache_auth_failures_total") >= 1.0);
    cache.until_found(key(3), b"answer").await;
}

#[tokio::test(flavor = "multi_thread")]
#[contract("S48", "CH21")]
async fn a_clear_leaves_the_other_objects_of_the_bucket() {
    for prefix in ["response-cache/", "deep/er/", "flat-", ""] {
        let server = S3Server::start();
        let l2 = format!("{}, key_prefix: \"{prefix}\"", server.l2());
        let cache = start(&format!(
            "lookup_budget: 20s, backend: tiered, l1: {{max_value_size: 1}}, l2: {{{l2}}}"
        ));
        for number in 1..=30 {
            cache.insert(key(number), b"answer");
        }
        until("all to be written", async || server.names().len() == 30).await;
        assert!(
            server.names().contains(&format!("{prefix}{}", key(7))),
            "{prefix}"
        );
        let others = [format!("{prefix}notes"), "another/thing".to_owned()];
        for other in &others {
            fs::create_dir_all(server.file(other).parent().unwrap()).unwrap();
            fs::write(server.file(other), "theirs").unwrap();
        }
        assert_eq!(cache.clear(CacheSelection::ALL).await, Ok(30), "{prefix}");
        let mut left = others.to_vec();
        left.sort();
        assert_eq!(server.names(), left, "{prefix}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CH23", "F50")]
async fn requests_are_signed_and_a_wrong_key_is_rejected() {
    let server = S3Server::start_with(Some(("AKIAWHO", "hush")));
    let with = |keys: &str| {
        let l2 = format!("{}, {keys}", server.l2());
        start(&format!(
            "lookup_budget: 20s, backend: tiered, l1: {{max_value_size: 1}}, l2: {{{l2}}}"
        ))
    };
    let right = with("access_key: AKIAWHO, secret_key: hush");
    right.insert_and_find(key(1), b"answer").await;
    assert_eq!(server.names(), [name(1)]);
    for keys in [
        "access_key: AKIAWHO, secret_key: wrong-secret",
        "region: us-east-1",
    ] {
        let wrong = with(keys);
        assert_eq!(
            wrong.get(&key(1)).await,
            CacheLookup::NotFound,
            "by the first tier"
        );
        until("the refusal to be counted", async || {
            wrong.metric("warmroute_s3_errors_total{code=\"403\"}") > 0.0
        })
        .await;
        let fault = wrong.clear(CacheSelection::ALL).await.unwrap_err();
        for shown in [fault.to_string(), format!("{:?}", *wrong.cache)] {
            assert!(
                !shown.contains("wrong-secret") && !shown.contains("AKIAWHO"),
                "{shown}"
            );
        }
        assert!(
            fault.to_string().contains("access_key"),
            "it names what to check: {fault}"
        );
    }
    assert_eq!(server.names(), [name(1)]);
}
