//! Random operations for as long as one likes, every answer compared with an oracle.
//!
//! `cargo run --release -p kv-index --example torture -- --ops 10000000 --seed 1`: one index after the other, each with
//! the next seed, until so many operations are done. A difference is printed with the few operations that it needs, and
//! the exit code is 1; `--seed` with the seed it names begins there.
//!
//! `--readers 2` lets as many threads look up while one applies as many changes as `--ops` says.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "that is what it is for"
)]

#[path = "../flags/mod.rs"]
mod flags;
#[path = "../../tests/oracle/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod oracle;

use std::{
    panic,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use flags::ExampleFlags;
use oracle::{
    random::SplitMix64,
    readers::{Length, ReaderCounts, race},
    reduce::report,
    setup::{Setup, TrialCounts},
    trial::Trial,
};

fn main() -> ExitCode {
    let flags = ExampleFlags::read(
        "torture",
        &[("--ops", 10_000_000), ("--seed", 1), ("--readers", 0)],
    );
    let [ops, seed, readers] = ["--ops", "--seed", "--readers"].map(|name| flags.number(name));
    println!("seed {seed}");
    // A panic of the index is a difference like others, and comes again whenever fewer steps are tried: once is enough.
    let (reported, tell) = (AtomicBool::new(false), panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        if !reported.swap(true, Ordering::Relaxed) {
            tell(panic);
        }
    }));
    let done = if readers == 0 {
        alone(ops, seed)
    } else {
        beside_readers(ops, seed, readers)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(difference) => {
            eprintln!("{difference}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures, and prints")]
fn alone(ops: u64, seed: u64) -> Result<(), String> {
    let started = Instant::now();
    let (mut done, mut counts, mut trials) = (0, TrialCounts::default(), 0);
    while done < ops {
        let seed = seed.wrapping_add(trials);
        let setup = if seed % 8 == 0 {
            Setup::tight(seed)
        } else {
            Setup::ample(seed)
        };
        // Mostly many short ones, for many kinds of worlds; now and then a long one, for what adds up.
        let steps = setup.steps(*SplitMix64::new(seed).pick(&[1000, 1000, 10_000, 100_000]));
        done += steps.len() as u64;
        trials += 1;
        counts +=
            Trial::run(&setup, &steps).map_err(|difference| report(&setup, steps, difference))?;
        if trials % 100 == 0 {
            println!(
                "{done} operations, {} queries, {:.0} s",
                counts.queries,
                started.elapsed().as_secs_f64()
            );
        }
    }
    println!(
        "{done} operations in {trials} trials ({} lacked room), {} queries checked ({} credits), blocks: {} stored, {} removed, \
         {} before their parent; {:.1} s, no difference",
        counts.shed,
        counts.queries,
        counts.credited,
        counts.stored,
        counts.removed,
        counts.orphans,
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "it measures, and prints")]
fn beside_readers(ops: u64, seed: u64, readers: u64) -> Result<(), String> {
    let started = Instant::now();
    let (mut done, mut all, mut races) = (0, ReaderCounts::default(), 0);
    while done < ops {
        let seed = seed.wrapping_add(races);
        let length = Length {
            changes: 50_000,
            lookups: 50_000,
        };
        let (changes, seen) = race(seed, length, readers)
            .map_err(|difference| format!("seed {seed}: {difference}"))?;
        races += 1;
        done += changes;
        all += seen;
        if races % 20 == 0 {
            println!(
                "{done} changes, {} queries, {:.0} s",
                all.compared,
                started.elapsed().as_secs_f64()
            );
        }
    }
    println!(
        "{done} changes in {races} races beside {readers} readers, {} queries checked ({} credits), {} during a change of \
         phase; {:.1} s, no difference",
        all.compared,
        all.credited,
        all.skipped,
        started.elapsed().as_secs_f64()
    );
    Ok(())
}
