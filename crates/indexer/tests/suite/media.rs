//! Media and their rows in replies.

use contract_id::contract;
use serde_json::{Value, json};

use crate::indexer_fixture::{IndexerFixture, StoredSequence, TestPublisher, engine, query};

const PROMPT: [u32; 8] = [5, 6, 7, 8, 9, 10, 11, 12];

async fn follow(fixture: &IndexerFixture) -> TestPublisher {
    let publisher = TestPublisher::bind().await;
    let body = engine(&publisher.endpoint, "i", &json!({}));
    fixture.post_ok("/register", &body).await;
    publisher.until_followed_by(1).await;
    publisher
}

fn store(publisher: &TestPublisher, tokens: &[u32], medium: &str) {
    publisher.store(&StoredSequence {
        tokens,
        medium,
        ..StoredSequence::default()
    });
}

fn row(longest: u32, gpu: u32, cpu: u32, disk: u32) -> Value {
    json!({"longest_matched": longest, "GPU": gpu, "DP": {"0": longest}, "CPU": cpu, "DISK": disk})
}

#[tokio::test]
#[contract("MC4", "V20")]
async fn the_names_of_the_three_tiers_are_known() {
    for (media, expected) in [
        (["gpu", "NPU", "hbm"], row(8, 8, 0, 0)),
        (["cpu", "DRAM", "host"], row(8, 0, 8, 0)),
        (["ssd", "3FS", "nfs"], row(8, 0, 0, 8)),
        (["disk", "dfs", "nvme"], row(8, 0, 0, 8)),
    ] {
        for medium in media {
            let fixture = IndexerFixture::open();
            let publisher = follow(&fixture).await;
            store(&publisher, &PROMPT, medium);
            let expected = json!({"default": {"i": expected}});
            fixture
                .until("/query", &query(&PROMPT, &json!({})), &expected)
                .await;
        }
    }
}

#[tokio::test]
#[contract("MC4", "V20")]
async fn an_unknown_medium_has_a_row_of_its_own_and_is_counted() {
    let fixture = IndexerFixture::open();
    let publisher = follow(&fixture).await;
    let request = query(&PROMPT, &json!({}));
    let rows = |row: Value| json!({"default": {"i": row}});
    store(&publisher, &PROMPT[..4], "GPU");
    store(&publisher, &PROMPT, "NVMe-weird");
    let mut expected = row(8, 4, 0, 0);
    expected["NVMe-weird"] = json!(8);
    fixture.until("/query", &request, &rows(expected)).await;
    let service = fixture
        .until_service("the count", |service| {
            service["counts"]["unlisted_media"] == 1
        })
        .await;
    assert_eq!(service["counts"]["applied"], 2);
    publisher.remove(1001, "nvme-WEIRD");
    let mut expected = row(4, 4, 0, 0);
    expected["NVMe-weird"] = json!(4);
    fixture.until("/query", &request, &rows(expected)).await;
}

#[tokio::test]
#[contract("MC4", "MC9")]
async fn a_block_on_a_disk_and_on_an_unknown_medium_counts_in_both_and_leaves_them_one_by_one() {
    let fixture = IndexerFixture::open();
    let publisher = follow(&fixture).await;
    let request = query(&PROMPT, &json!({}));
    let rows = |longest: u32, disk: u32, weird: u32| {
        let mut row = row(longest, 0, 0, disk);
        row["NVMe-weird"] = json!(weird);
        json!({"default": {"i": row}})
    };
    store(&publisher, &PROMPT, "DISK");
    store(&publisher, &PROMPT, "NVMe-weird");
    fixture.until("/query", &request, &rows(8, 8, 8)).await;
    publisher.remove(1001, "disk");
    fixture.until("/query", &request, &rows(8, 4, 8)).await;
    publisher.remove(1001, "NVMe-weird");
    fixture.until("/query", &request, &rows(4, 4, 4)).await;
    // In the other order, and the disk is left last.
    store(&publisher, &PROMPT, "NVMe-weird");
    fixture.until("/query", &request, &rows(8, 4, 8)).await;
    store(&publisher, &PROMPT, "ssd");
    fixture.until("/query", &request, &rows(8, 8, 8)).await;
    publisher.remove(1001, "NVMe-weird");
    fixture.until("/query", &request, &rows(8, 8, 4)).await;
}
