//! Queries, events, evictions and clean-ups at the same time.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use contract_id::contract;
use kv_blocks::Moment;
use prefix_view::{EventKind, PrefixIndex};

use crate::{created, event, index_with_capacity, prefix, record, second};

const ROUNDS: u64 = 20_000;

/// The token count of every event for a prefix, so that a mixture of two entries is detected.
fn tokens(number: u64) -> u32 {
    u32::try_from(number).unwrap() * 16 + 1
}

#[test]
#[contract("CK51")]
fn queries_are_answered_during_writes() {
    let index = index_with_capacity(200);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = ["w1", "w2"]
            .into_iter()
            .map(|backend| {
                let index = &index;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let number = round * 7 % 500;
                        let now = Moment::at(std::time::Duration::from_micros(round));
                        created(index, backend, number, tokens(number), now);
                        if round % 3 == 0 {
                            record(
                                index,
                                backend,
                                event(EventKind::Purged, number / 2, None),
                                now,
                            );
                        }
                        if round % 1_000 == 0 {
                            index.cleanup_expired(now);
                        }
                    }
                })
            })
            .collect();
        for reader in 0..3 {
            let (index, over) = (&index, &over);
            scope.spawn(move || {
                let mut number = reader;
                while !over.load(Ordering::Relaxed) {
                    number = (number + 1) % 500;
                    let holders = index.query(&prefix(number), second(1)).unwrap();
                    assert!(holders.len() <= 2);
                    assert!(holders.iter().all(|holder| holder.tokens == tokens(number)));
                }
            });
        }
        let ends: Vec<_> = writers
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect();
        // Set before a writer's panic is passed on; otherwise its readers would loop for ever.
        over.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
    });

    // The statistics agree with the actual content.
    let stats = index.stats();
    assert!(stats.evicted_prefixes > 0 && stats.prefixes <= 200);
    let live: Vec<_> = (0..500)
        .flat_map(|number| index.query(&prefix(number), second(1)).unwrap())
        .collect();
    assert_eq!(stats.entries, live.len() as u64);
    for backend in &stats.backends {
        assert_eq!(
            backend.hot,
            live.iter()
                .filter(|holder| holder.backend == backend.backend)
                .count() as u64
        );
    }
    let names: Vec<Arc<str>> = stats
        .backends
        .into_iter()
        .map(|backend| backend.backend)
        .collect();
    assert_eq!(names, [Arc::from("w1"), Arc::from("w2")]);
}
