//! An untrusted target is credited by predictions; its announcements are kept beside them.

use std::{sync::Arc, time::Duration};

use kv_blocks::{Moment, Tier};
use kv_index::TierBlocks;

use crate::stream::{IndexStream, TARGET, chain, namespace};

const TTL: Duration = Duration::from_secs(100);
const PROMPT: [u32; 6] = [1, 2, 3, 4, 5, 6];

impl IndexStream {
    fn predict(&self, blocks: usize) {
        self.index.predict(
            TARGET,
            &namespace(),
            &chain(&PROMPT[..blocks]),
            Moment::START,
            TTL,
        );
    }
}

fn device(blocks: u32) -> TierBlocks {
    TierBlocks {
        device: blocks,
        ..TierBlocks::default()
    }
}

fn predicted(blocks: u32) -> TierBlocks {
    TierBlocks {
        speculative: blocks,
        ..TierBlocks::default()
    }
}

#[test]
fn everything_credited_to_a_trusted_target_is_announced() {
    let mut stream = IndexStream::new();
    stream.store(&PROMPT[..4], 0);
    stream.predict(6);
    let both = TierBlocks {
        device: 4,
        speculative: 2,
        ..TierBlocks::default()
    };
    assert_eq!(stream.runs(&PROMPT), (both, both));
}

#[test]
fn an_untrusted_target_is_credited_by_predictions_and_its_announcements_are_kept() {
    let mut stream = IndexStream::new();
    stream.store(&PROMPT[..4], 0);
    stream.index.trust(TARGET, false);
    assert_eq!(
        stream.runs(&PROMPT),
        (predicted(0), device(4)),
        "it is found nevertheless"
    );
    stream.predict(2);
    assert_eq!(
        stream.runs(&PROMPT),
        (predicted(2), device(4)),
        "entered although it is announced"
    );
    stream.store(&PROMPT[..5], 0);
    assert_eq!(
        stream.runs(&PROMPT),
        (predicted(2), device(5)),
        "announcements confirm nothing"
    );
    stream.predict(6);
    assert_eq!(stream.runs(&PROMPT), (predicted(6), device(5)));
    stream.remove(&PROMPT[..3]);
    assert_eq!(stream.runs(&PROMPT), (predicted(6), device(2)));
    assert!(stream.look_up(&[9]).is_none());
}

#[test]
fn announcements_of_an_untrusted_target_are_reported_by_tier() {
    let mut stream = IndexStream::new();
    stream.index.trust(TARGET, false);
    stream.store(&PROMPT[..2], 0);
    stream.store_in(Tier::Remote, &PROMPT[..4], 1);
    stream.store(&PROMPT[..5], 4);
    let announced = TierBlocks {
        device: 3,
        remote: 2,
        ..TierBlocks::default()
    };
    assert_eq!(
        stream.runs(&PROMPT),
        (predicted(0), announced),
        "each block in its best tier"
    );
}

#[test]
fn predictions_of_an_untrusted_target_expire_as_any_other() {
    let mut stream = IndexStream::new();
    stream.store(&PROMPT[..4], 0);
    stream.index.trust(TARGET, false);
    stream.predict(3);
    let later = stream
        .index
        .lookup(&namespace(), &chain(&PROMPT), Moment::START + TTL);
    assert_eq!(
        (later[0].blocks, later[0].announced),
        (predicted(0), device(4))
    );
    let speculation =
        stream
            .index
            .predict(TARGET, &namespace(), &chain(&PROMPT), Moment::START, TTL);
    stream.index.retract(speculation);
    assert_eq!(stream.runs(&PROMPT), (predicted(0), device(4)));
}

#[test]
fn restored_trust_credits_all_announced_blocks_and_ends_the_predictions() {
    let mut stream = IndexStream::new();
    stream.store(&PROMPT[..2], 0);
    stream.index.trust(TARGET, false);
    stream.predict(6);
    stream.store(&PROMPT[..4], 2);
    let digest = stream.index.digest();
    stream.index.trust(TARGET, true);
    assert_eq!(stream.runs(&PROMPT), (device(4), device(4)));
    assert_eq!(
        (stream.index.digest(), stream.index.stats().predicted),
        (digest, 0)
    );
    stream.remove(&PROMPT[..1]);
    assert!(
        stream.look_up(&PROMPT).is_none(),
        "no prediction survives a removal"
    );
    // A second call changes nothing.
    stream.predict(1);
    stream.index.trust(TARGET, true);
    assert_eq!(
        stream.runs(&PROMPT).0,
        TierBlocks {
            device: 3,
            speculative: 1,
            ..TierBlocks::default()
        }
    );
}

#[test]
fn the_stored_state_of_a_target_does_not_depend_on_trust() {
    let mut trusted = IndexStream::new();
    let mut other = IndexStream::new();
    other.index.trust(TARGET, false);
    for stream in [&mut trusted, &mut other] {
        stream.store(&PROMPT, 0);
        stream.store(&PROMPT, 5);
        stream.remove(&PROMPT);
        stream.remove(&PROMPT[..5]);
    }
    assert_eq!(trusted.index.digest(), other.index.digest());
    assert_eq!(
        trusted.index.blocks_per_tier(TARGET),
        other.index.blocks_per_tier(TARGET)
    );
    assert_eq!(trusted.resident(), other.resident());
}

#[test]
fn distrust_survives_a_clear_and_ends_with_the_worker() {
    let mut stream = IndexStream::new();
    stream.index.trust(TARGET, false);
    stream.store(&PROMPT[..2], 0);
    stream.predict(1);
    stream.index.clear(TARGET);
    assert!(stream.look_up(&PROMPT).is_none());
    stream.index.register(TARGET, Arc::from("m"));
    stream.store(&PROMPT[..2], 0);
    assert_eq!(stream.runs(&PROMPT), (predicted(0), device(2)));

    stream.index.remove_worker(TARGET.worker);
    let stats = stream.index.stats();
    assert_eq!(
        (stats.distinct, stats.namespaces, stats.predicted),
        (0, 0, 0)
    );
    stream.index.register(TARGET, Arc::from("m"));
    stream.store(&PROMPT[..2], 0);
    assert_eq!(stream.runs(&PROMPT), (device(2), device(2)));
}
