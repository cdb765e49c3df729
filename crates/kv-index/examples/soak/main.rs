//! Prompts that never come twice, at full speed and for long, against a memory budget.
//!
//! `cargo run --release -p kv-index --example soak -- --minutes 20 --budget 512MiB`: every ten seconds the time, the
//! memory of this process, the memory the index counts and the blocks stored per second. Exit code 1 if in the end the
//! process has grown by more than 1.1 budgets, or if the last minute is more than a tenth slower than the first one after
//! the budget was reached.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "that is what it is for"
)]

#[path = "../flags/mod.rs"]
mod flags;
#[path = "../../tests/soak/memory.rs"]
mod memory;
#[path = "../../tests/soak/mod.rs"]
mod soak;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use flags::ExampleFlags;
use memory::resident_bytes;
use soak::Soak;

const LINE: Duration = Duration::from_secs(10);
/// Lines of a minute.
const MINUTE: usize = 6;
const MIB: f64 = 1024.0 * 1024.0;

fn main() -> ExitCode {
    let flags = ExampleFlags::read("soak", &[("--minutes", 20), ("--budget", 512 << 20)]);
    match run(
        Duration::from_secs(60 * flags.number("--minutes")),
        flags.number("--budget"),
    ) {
        Ok(verdict) => {
            println!("{verdict}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "it measures, and prints"
)]
fn run(length: Duration, budget: u64) -> Result<String, String> {
    let resident = || {
        resident_bytes()
            .ok_or("no /proc/self/status to read the memory in use from: run it on Linux")
    };
    let before = resident()?;
    let mut soak = Soak::new(budget);
    let started = Instant::now();
    let (mut most, mut line, mut blocks) = (0, started, 0);
    // Blocks per second in each line since the budget was reached.
    let mut full: Vec<f64> = Vec::new();
    println!(
        "{:>8} {:>10} {:>11} {:>14} {:>12}",
        "seconds", "grown MiB", "counted MiB", "blocks/s", "shed"
    );
    while started.elapsed() < length {
        for _ in 0..64 {
            blocks += u64::from(soak.prompt());
        }
        if line.elapsed() < LINE {
            continue;
        }
        let rate = blocks as f64 / line.elapsed().as_secs_f64();
        let (grown, stats) = (resident()?.saturating_sub(before), soak.index.stats());
        println!(
            "{:>8.0} {:>10.1} {:>11.1} {rate:>14.0} {:>12}",
            started.elapsed().as_secs_f64(),
            grown as f64 / MIB,
            stats.bytes as f64 / MIB,
            stats.shed
        );
        most = most.max(grown);
        if stats.shed > 0 {
            full.push(rate);
        }
        (line, blocks) = (Instant::now(), 0);
    }
    judge(budget, most, &full)
}

#[expect(clippy::cast_precision_loss, reason = "it prints")]
fn judge(budget: u64, most: u64, full: &[f64]) -> Result<String, String> {
    let memory = format!(
        "grew by {:.1} MiB at most, {:.1} MiB allowed",
        most as f64 / MIB,
        budget as f64 / MIB
    );
    if most > budget + budget / 10 {
        return Err(format!("{memory} and a tenth more"));
    }
    if full.is_empty() {
        return Err(format!(
            "{memory}; the budget was never reached: run it for longer, or with less budget"
        ));
    }
    // The line in which the budget was reached is of both kinds.
    let full = &full[1..];
    if full.len() < 2 * MINUTE {
        return Ok(format!(
            "{memory}; too short to compare the last minute with the first one after the budget was reached"
        ));
    }
    let mean = |lines: &[f64]| lines.iter().sum::<f64>() / lines.len() as f64;
    let (first, last) = (mean(&full[..MINUTE]), mean(&full[full.len() - MINUTE..]));
    let speed =
        format!("blocks per second: {first:.0} in the first full minute, {last:.0} in the last");
    if last < 0.9 * first {
        Err(format!("{memory}; {speed}: slower"))
    } else {
        Ok(format!("{memory}; {speed}"))
    }
}
