//! Several routers in front of the same engines.

use std::time::Duration;

use routing::{CacheSource, Policy};
use simulate::{CellReport, ReplicaPlan, run};

use super::{cell, line, read};

/// Requests of about 2 s each, 50 ms apart, under a policy that knows nothing but load.
fn played(replicas: ReplicaPlan) -> CellReport {
    let lines: Vec<String> = (0..400u32)
        .map(|number| line(number * 50, &[u64::from(number) + 1_000], 300))
        .collect();
    let mut cell = cell(Policy::LeastLoaded, 4);
    cell.replicas = replicas;
    run(&read(&lines.join("\n")), &cell)
}

fn in_sync(routers: u32) -> ReplicaPlan {
    ReplicaPlan {
        routers,
        load_sync: true,
        ..ReplicaPlan::default()
    }
}

#[test]
fn the_messages_between_routers_are_counted() {
    let sync = played(in_sync(3)).load_sync.expect("in sync");
    assert_eq!(sync.repairs, 0);
    // Opened, first token, sample, end with its result, length.
    let changes = sync.changes_per_s / sync.requests_per_s;
    assert!((4.5..=5.5).contains(&changes), "{sync:?}");
    // Each prompt has one whole block.
    assert!(
        (sync.hashes_per_s - sync.requests_per_s).abs() < 0.1,
        "{sync:?}"
    );
    assert!(played(ReplicaPlan::default()).load_sync.is_none());
}

#[test]
fn lost_messages_are_repaired() {
    let lossy = played(ReplicaPlan {
        exchange_loss: 0.1,
        ..in_sync(3)
    });
    assert_eq!(lossy.unfinished, 0);
    assert!(lossy.load_sync.expect("in sync").repairs > 10);
    let lossless = played(in_sync(3)).ttft_ms.mean;
    let lossy = lossy.ttft_ms.mean;
    assert!(lossy < 1.05 * lossless, "{lossy} and {lossless}");
}

/// The entries of routers without events are their own decisions.
#[test]
fn routers_in_sync_find_each_others_prompts_without_events() {
    let hits = |load_sync| {
        let lines: Vec<String> = (0..200u32)
            .map(|number| {
                let chat = u64::from(number % 10) * 100;
                let ids: Vec<u64> = (1..=u64::from(number / 10) + 1)
                    .map(|turn| chat + turn)
                    .collect();
                line(number * 500, &ids, 1)
            })
            .collect();
        let mut cell = cell(Policy::CacheAware, 4);
        cell.cache = CacheSource::Predicted;
        cell.routing.prediction_ttl = Duration::from_secs(600);
        cell.replicas = ReplicaPlan {
            load_sync,
            ..in_sync(4)
        };
        run(&read(&lines.join("\n")), &cell).block_hit_ratio
    };
    let (shared, apart) = (hits(true), hits(false));
    assert!(shared > 0.85 && shared > apart + 0.05, "{shared} {apart}");
}
