//! Prints the figures that can be held against another simulator of the same engine model, as CSV.
//!
//! Two things that such simulators leave out are left out here: entries that the router makes in its index before an
//! engine confirms them, and, with `--no-overhead`, the fixed time before a request is scheduled.
//!
//! ```sh
//! cargo run --release -p simulate --example agreement -- TRACE [--no-overhead] [SEED]...
//! ```
#![allow(clippy::print_stdout, reason = "it is there to print")]

use std::error::Error;

use engine_model::Profile;
use kv_blocks::BlockSize;
use routing::{Policy, RoutingSection, RoutingSettings};
use simulate::{Cell, Trace, TracePace, run};

const POLICIES: [Policy; 3] = [Policy::RoundRobin, Policy::LeastLoaded, Policy::DynamoCost];

fn main() -> Result<(), Box<dyn Error>> {
    let mut profile = Profile::named("8b-h200").ok_or("the profile is gone")?;
    let (mut file, mut seeds) = (None, Vec::new());
    for arg in std::env::args().skip(1) {
        match arg.parse::<u64>() {
            _ if arg == "--no-overhead" => profile.overhead_ms = 0.0,
            Ok(seed) => seeds.push(seed),
            Err(_) => file = Some(arg),
        }
    }
    if seeds.is_empty() {
        seeds.push(1);
    }
    let text =
        std::fs::read_to_string(file.ok_or("name the trace: an uncompressed file of JSON lines")?)?;
    let mut trace = Trace::read(&text, BlockSize::new(512)?)?;
    trace.drop_what_exceeds(&profile);
    println!("workers,load,policy,seed,block_hit,ttft_mean,ttft_p99,itl_mean");
    for workers in [4, 8] {
        for load in [0.3, 0.55] {
            let pace = TracePace::for_load(&trace, &profile, workers, load);
            for (policy, seed) in POLICIES
                .iter()
                .flat_map(|policy| seeds.iter().map(move |seed| (*policy, *seed)))
            {
                let routing = RoutingSettings {
                    policy,
                    section: RoutingSection {
                        speculative: false,
                        ..RoutingSection::default()
                    },
                    ..RoutingSettings::default()
                };
                let report = run(
                    &trace,
                    &Cell {
                        seed,
                        ..Cell::new(routing, workers, pace, profile)
                    },
                );
                let (ttft, itl) = (report.ttft_ms, report.itl_ms);
                let hits = report.block_hit_ratio;
                println!(
                    "{workers},{load},{policy},{seed},{hits:.4},{:.1},{:.1},{:.2}",
                    ttft.mean, ttft.p99, itl.mean
                );
            }
        }
    }
    Ok(())
}
