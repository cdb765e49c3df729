//! Plays traces under two policies over a grid of fleets and loads, and prints how the first does beside the second.
//!
//! ```sh
//! cargo run --release -p simulate --example against -- warm dynamo_cost TRACE...
//! cargo run --release -p simulate --example against -- --fetch-gb-s=10 warm dynamo_cost TRACE...
//! ```
//!
//! With `--fetch-gb-s` engines read blocks from each other over connections of this speed, with a floor of 5 ms, where
//! the policy is `warm`. With `--pace` every trace is played so many times faster than its loads say.
#![allow(clippy::print_stdout, reason = "it is there to print")]

use std::{error::Error, time::Duration};

use engine_model::Profile;
use kv_blocks::BlockSize;
use routing::{Policy, RoutingSettings};
use simulate::{Cell, CellReport, FetchLink, Trace, TracePace, run};

const WORKERS: [u32; 3] = [4, 8, 16];
const LOADS: [f64; 3] = [0.3, 0.55, 0.8];
const FETCH_FLOOR: Duration = Duration::from_millis(5);

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).peekable();
    let mut number = |flag: &str| -> Result<Option<f64>, Box<dyn Error>> {
        let given = args.next_if(|arg| arg.starts_with(flag));
        Ok(given
            .map(|arg| arg[flag.len()..].parse::<f64>())
            .transpose()?)
    };
    let fetch = number("--fetch-gb-s=")?.map(|gb_per_s| FetchLink {
        gb_per_s,
        floor: FETCH_FLOOR,
    });
    let times = number("--pace=")?.unwrap_or(1.0);
    let policies: Vec<Policy> = args
        .by_ref()
        .take(2)
        .map(|name| name.parse())
        .collect::<Result<_, _>>()?;
    let [ours, theirs] = policies[..] else {
        return Err("name two policies and traces: files of JSON lines".into());
    };
    let profile = Profile::named("8b-h200").ok_or("the profile is gone")?;
    // By load: mean, p99, ITL, hits, and the imbalance itself; as logarithms.
    let mut sums = [[0.0; 5]; LOADS.len()];
    let mut cells = 0.0;
    println!(
        "trace workers load hit ttft_mean p50 p99 itl imbalance | {theirs}: hit ttft_mean p99 itl imbalance | mean p99"
    );
    for file in args {
        let mut trace = Trace::read(&std::fs::read_to_string(&file)?, BlockSize::new(512)?)?;
        trace.drop_what_exceeds(&profile);
        for workers in WORKERS {
            cells += 1.0;
            for (load, sums) in LOADS.into_iter().zip(&mut sums) {
                let usual = TracePace::for_load(&trace, &profile, workers, load);
                let pace = TracePace {
                    speedup: times * usual.speedup,
                    ..usual
                };
                let play = |policy| {
                    let routing = RoutingSettings {
                        policy,
                        ..RoutingSettings::default()
                    };
                    let cell = Cell::new(routing, workers, pace, profile);
                    run(&trace, &cell.with_fetch(fetch))
                };
                let (one, other) = (play(ours), play(theirs));
                row(&file, workers, load, &one, &other);
                for (sum, value) in sums.iter_mut().zip(compared(&one, &other)) {
                    *sum += value.ln();
                }
            }
        }
    }
    println!("\ngeometric means: load, TTFT mean, p99, ITL, hits, and the imbalance of {ours}");
    for (load, sums) in LOADS.into_iter().zip(sums) {
        let [mean, p99, itl, hits, imbalance] = sums.map(|sum| (sum / cells).exp());
        println!("{load} {mean:.3} {p99:.3} {itl:.3} {hits:.3} {imbalance:.3}");
    }
    Ok(())
}

fn row(file: &str, workers: u32, load: f64, one: &CellReport, other: &CellReport) {
    let name = file.rsplit('/').next().unwrap_or(file);
    println!(
        "{name} {workers} {load} {:.2} {:.1} {:.0} {:.0} {:.2} {:.2} | {:.2} {:.1} {:.0} {:.2} {:.2} | {:.3} {:.3}",
        100.0 * one.block_hit_ratio,
        one.ttft_ms.mean,
        one.ttft_ms.p50.unwrap_or(f64::NAN),
        one.ttft_ms.p99,
        one.itl_ms.mean,
        one.prefill_imbalance,
        100.0 * other.block_hit_ratio,
        other.ttft_ms.mean,
        other.ttft_ms.p99,
        other.itl_ms.mean,
        other.prefill_imbalance,
        one.ttft_ms.mean / other.ttft_ms.mean,
        one.ttft_ms.p99 / other.ttft_ms.p99,
    );
}

fn compared(one: &CellReport, other: &CellReport) -> [f64; 5] {
    [
        one.ttft_ms.mean / other.ttft_ms.mean,
        one.ttft_ms.p99 / other.ttft_ms.p99,
        one.itl_ms.mean / other.itl_ms.mean,
        one.block_hit_ratio / other.block_hit_ratio,
        one.prefill_imbalance,
    ]
}
