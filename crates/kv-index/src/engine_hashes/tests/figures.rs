//! Prints the cost of engine hashes: `cargo test --release -p kv-index --lib
//! engine_hashes::tests::figures -- --ignored --nocapture`.

use std::fs;

use super::*;

const BLOCKS: u64 = 4 << 20;

/// Returns a long hash that looks random.
fn scattered(number: u64) -> EngineHash {
    EngineHash(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63)
}

/// Returns the processor time of this thread, nanoseconds.
fn on_cpu() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

fn measure(what: &str, work: impl FnOnce()) {
    let start = on_cpu();
    work();
    println!("{what}: {} ns a block", (on_cpu() - start) / BLOCKS);
}

#[test]
#[ignore = "prints figures of this machine"]
fn cost_of_engine_hashes() {
    for of_run in [16, 128, 1024] {
        let mut names = names(0..2);
        names.table = HashIndex::new(BLOCKS);
        let runs: Vec<Vec<EngineHash>> = (0..BLOCKS / of_run)
            .map(|run| (run * of_run..(run + 1) * of_run).map(scattered).collect())
            .collect();
        println!("runs of {of_run} blocks, {BLOCKS} in all");
        for (member, what) in [(0, "announced first"), (1, "announced by another")] {
            measure(what, || {
                for (reported, run) in runs.iter().zip(0..) {
                    announce(&mut names, member, reported, run, 0);
                }
            });
        }
        println!("{:.1} bytes a block", names.bytes() as f64 / BLOCKS as f64);
        // In an order other than the announced one.
        let order: Vec<_> = (0..runs.len()).map(|at| at * 7919 % runs.len()).collect();
        measure("resolved", || {
            let mut found = 0;
            for run in &order {
                names.resolve_any(0, &runs[*run], |_, _, _| found += 1);
            }
            assert_eq!(found, BLOCKS);
        });
        measure("forgotten and announced again", || {
            for run in &order {
                let number = u32::try_from(*run).unwrap();
                names.forget(number, 0..RUN_BLOCKS);
                announce(&mut names, 0, &runs[*run], number, 0);
            }
        });
        measure("carried along when parting", || {
            let end = u32::try_from(of_run).unwrap();
            let refused = HashConflict {
                name: EngineHash(1),
                block_ref: block_ref(0, 0),
            };
            names.split_group(
                1,
                (0..u32::try_from(runs.len()).unwrap()).map(|run| (run, 0..end)),
                refused,
            );
        });
    }
}
