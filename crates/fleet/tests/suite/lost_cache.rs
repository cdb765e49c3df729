//! The cache of an ended process is not credited, and its removal blocks no waiting request.

use std::{sync::Arc, time::Duration};

use contract_id::contract;
use fleet::FailureKind;
use kv_blocks::{BlockSize, DpRank, Namespace, PromptIdentity, SequenceHash, Target, Tier};
use kv_index::KvIndex;

use crate::{
    fake_engine::FakeEngine,
    setup::{parts, start, worker},
};

/// Chains of the engine, each a separate run: their removal takes a hundred slices.
const CHAINS: u64 = 100_000;

fn namespace() -> Namespace {
    let block_size = BlockSize::new(16).unwrap();
    Namespace {
        model: Arc::from("m"),
        lora: None,
        salt: None,
        block_size,
        identity: PromptIdentity::Tokens,
    }
}

fn fill(index: &KvIndex, target: Target) {
    for chain in 0..CHAINS {
        index.store_hashes(
            target,
            &namespace(),
            None,
            &[SequenceHash(chain)],
            Tier::Device,
        );
    }
}

#[tokio::test]
#[contract("F1")]
async fn a_request_to_a_dead_engine_does_not_wait_for_the_removal_of_its_blocks() {
    let mut engine = FakeEngine::serving("m").await;
    let parts = parts(vec![worker("w1", &engine.url())]);
    let index = Arc::clone(&parts.index);
    let running = start(parts);
    let mut was_left = false;
    // The removal thread may be faster than this one on a busy machine, but not every time.
    for _ in 0..20 {
        let target = Target {
            worker: running.ready("w1").await.id,
            rank: DpRank(0),
        };
        fill(&index, target);
        assert_eq!(index.blocks_per_tier(target)[0], CHAINS);
        engine.die().await;
        running
            .fleet
            .report_failure(target.worker, FailureKind::Refused);
        was_left |= index.stats().memberships > 0;
        assert_eq!(
            index.blocks_per_tier(target)[0],
            0,
            "nothing of it is its own any more"
        );
        assert!(
            index
                .lookup(&namespace(), &[SequenceHash(0)], kv_blocks::Moment::START)
                .is_empty()
        );
        // Blocks of the next process stay, even during the removal of the others.
        engine.start();
        running.ready("w1").await;
        index.store_hashes(target, &namespace(), None, &[SequenceHash(7)], Tier::Device);
        while index.stats().memberships > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(index.blocks_per_tier(target)[0], 1);
        if was_left {
            break;
        }
    }
    assert!(
        was_left,
        "the report came back after everything was forgotten"
    );
    running.fleet.stop().await;
}
