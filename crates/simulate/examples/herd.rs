//! Plays workloads with one router and with several in front of the same engines, with and without
//! load sync, and prints how they compare.
//!
//! ```sh
//! cargo run --release -p simulate --example herd -- WORKERS LOAD PROFILE RUNS DELAY_MS TRACE...
//! ```
//!
//! A TRACE is a file of JSON lines, plain or `.zst`, or `synthetic:KIND?NAME=VALUE&...`.
#![allow(clippy::print_stdout, reason = "it is there to print")]

use std::{error::Error, fs, io::Read, thread, time::Duration};

use engine_model::Profile;
use kv_blocks::BlockSize;
use routing::{Policy, RoutingSettings};
use simulate::{Cell, CellReport, ReplicaPlan, Synthetic, Trace, TracePace, run};

const ROUTERS: [u32; 5] = [1, 2, 3, 4, 8];

/// Runs of a cell differ in their pace by this much, and in their seed.
const PACE_STEP: f64 = 0.002;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [workers, load, profile, runs, delay_ms, traces @ ..] = &args[..] else {
        return Err("expected WORKERS LOAD PROFILE RUNS DELAY_MS TRACE...".into());
    };
    let (workers, load, runs): (u32, f64, u32) = (workers.parse()?, load.parse()?, runs.parse()?);
    let profile: Profile = profile.parse()?;
    let exchange_delay = Duration::from_millis(delay_ms.parse()?);
    println!(
        "| workload | routers | load sync | TTFT mean, ms | against 1 | worst run | p99, ms | hits, % | imbalance | against 1 | held, % | requests/s | messages/s | changes/s | hashes/s | new hashes/s |"
    );
    println!("|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for name in traces {
        let mut trace = read(name)?;
        trace.drop_what_exceeds(&profile);
        let pace = TracePace::for_load(&trace, &profile, workers, load);
        let mean = |routers, load_sync| {
            let cell = |run: u32| {
                let routing = RoutingSettings {
                    policy: Policy::Warm,
                    ..RoutingSettings::default()
                };
                let middle = f64::from(runs - 1) / 2.0;
                let times = 1.0 + PACE_STEP * (f64::from(run) - middle);
                Cell {
                    replicas: ReplicaPlan {
                        routers,
                        load_sync,
                        exchange_delay,
                        ..ReplicaPlan::default()
                    },
                    seed: u64::from(run) + 1,
                    ..Cell::new(
                        routing,
                        workers,
                        TracePace::faster(pace.speedup * times),
                        profile,
                    )
                }
            };
            Figures::mean(&in_parallel(&trace, (0..runs).map(cell).collect()))
        };
        let short = name.rsplit('/').next().unwrap_or(name);
        let one = mean(1, false);
        print_row(short, 1, "-", &one, &one);
        for routers in &ROUTERS[1..] {
            for (load_sync, word) in [(true, "on"), (false, "off")] {
                print_row(short, *routers, word, &mean(*routers, load_sync), &one);
            }
        }
    }
    Ok(())
}

fn read(name: &str) -> Result<Trace, Box<dyn Error>> {
    let block = BlockSize::new(512)?;
    let text = match name.strip_prefix("synthetic:") {
        Some(workload) => workload.parse::<Synthetic>()?.text(block)?,
        None if name.ends_with(".zst") => {
            let mut text = String::new();
            ruzstd::decoding::StreamingDecoder::new(fs::File::open(name)?)?
                .read_to_string(&mut text)?;
            text
        }
        None => fs::read_to_string(name)?,
    };
    Ok(Trace::read(&text, block)?)
}

/// Runs two cells at a time.
fn in_parallel(trace: &Trace, cells: Vec<Cell>) -> Vec<CellReport> {
    let halves: Vec<Vec<Cell>> = cells
        .chunks(cells.len().div_ceil(2))
        .map(<[_]>::to_vec)
        .collect();
    thread::scope(|scope| {
        let threads: Vec<_> = halves
            .iter()
            .map(|half| {
                scope.spawn(|| half.iter().map(|cell| run(trace, cell)).collect::<Vec<_>>())
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_default())
            .collect()
    })
}

/// Means over the runs of a cell.
#[derive(Default)]
struct Figures {
    ttft: f64,
    worst: f64,
    p99: f64,
    hits: f64,
    imbalance: f64,
    held: f64,
    sync: [f64; 5],
}

impl Figures {
    fn mean(reports: &[CellReport]) -> Self {
        let mean = |of: &dyn Fn(&CellReport) -> f64| {
            reports.iter().map(of).sum::<f64>() / reports.len() as f64
        };
        let sync = |of: fn(&simulate::LoadSyncReport) -> f64| {
            mean(&move |report| report.load_sync.as_ref().map_or(0.0, of))
        };
        Self {
            ttft: mean(&|report| report.ttft_ms.mean),
            worst: reports
                .iter()
                .map(|report| report.ttft_ms.mean)
                .fold(0.0, f64::max),
            p99: mean(&|report| report.ttft_ms.p99),
            hits: mean(&|report| 100.0 * report.block_hit_ratio),
            imbalance: mean(&|report| report.prefill_imbalance),
            held: mean(&|report| 100.0 * report.held_ratio),
            sync: [
                sync(|sync| sync.requests_per_s),
                sync(|sync| sync.messages_per_s),
                sync(|sync| sync.changes_per_s),
                sync(|sync| sync.hashes_per_s),
                sync(|sync| sync.new_hashes_per_s),
            ],
        }
    }
}

fn print_row(name: &str, routers: u32, sync: &str, figures: &Figures, one: &Figures) {
    let percent = |found: f64, base: f64| 100.0 * (found / base - 1.0);
    let sent = figures.sync.map(|value| {
        if sync == "on" {
            format!("{value:.1}")
        } else {
            "-".to_owned()
        }
    });
    println!(
        "| {name} | {routers} | {sync} | {:.1} | {:+.1} % | {:.0} | {:.0} | {:.2} | {:.3} | {:+.1} % | {:.1} | {} |",
        figures.ttft,
        percent(figures.ttft, one.ttft),
        figures.worst,
        figures.p99,
        figures.hits,
        figures.imbalance,
        percent(figures.imbalance, one.imbalance),
        figures.held,
        sent.join(" | "),
    );
}
