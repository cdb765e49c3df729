//! What lookups and memory cost as an index grows.
//!
//! `cargo run --release -p kv-index --example scale -- --memberships 100000000`: prints tables in Markdown and draws
//! `docs/benchmarks/index-{memberships,targets,depth}.svg` (not with `--plots 0`). It stops growing where the process
//! takes more than `--memory 18GiB`. [`load`] says what the content is like.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "that is what it is for"
)]

#[path = "../flags/mod.rs"]
mod flags;
mod load;
mod measure;
#[path = "../../tests/soak/memory.rs"]
mod memory;
#[path = "../../tests/oracle/random.rs"]
#[allow(dead_code, reason = "a part of it is enough here")]
mod random;
mod svg;

use std::{fs, io, path::Path, process::ExitCode};

use flags::ExampleFlags;
use load::{FleetShape, IndexLoad};
use measure::{IndexMeasurement, measure, used};
use svg::{Chart, Series, draw};

const DEPTH: u32 = 1024;
/// Memberships of the indexes that grow in targets and in depth.
const MIDDLE: u64 = 4_000_000;

fn main() -> ExitCode {
    let defaults = [
        ("--targets", 1000),
        ("--memberships", 100_000_000),
        ("--memory", 18 << 30),
        ("--plots", 1),
    ];
    let flags = ExampleFlags::read("scale", &defaults);
    let targets = u32::try_from(flags.number("--targets")).unwrap_or(u32::MAX);
    let memory = flags.number("--memory");
    let goal = flags.number("--memberships");
    let memberships = by_memberships(targets, goal, memory);
    let by_targets = each("targets", &below(targets, 4), |targets| {
        (
            FleetShape {
                targets,
                depth: DEPTH,
            },
            goal.min(MIDDLE),
        )
    });
    let by_depth = each("depth", &below(16_384, 4)[2..], |depth| {
        (FleetShape { targets: 64, depth }, goal.min(MIDDLE))
    });
    if flags.number("--plots") == 0 {
        return ExitCode::SUCCESS;
    }
    match plot(&memberships, &by_targets, &by_depth) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "docs/benchmarks cannot be written: {error}: run it from a checkout that may be written to"
            );
            ExitCode::FAILURE
        }
    }
}

/// Powers of `base` below `end`, and `end`.
fn below(end: u32, base: u32) -> Vec<u32> {
    std::iter::successors(Some(1), |last: &u32| last.checked_mul(base))
        .take_while(|number| *number < end)
        .chain([end])
        .collect()
}

/// One index that grows to `goal` memberships, measured every half decade.
fn by_memberships(targets: u32, goal: u64, memory: u64) -> Vec<IndexMeasurement> {
    let start = used();
    let mut load = IndexLoad::new(
        FleetShape {
            targets,
            depth: DEPTH,
        },
        memory,
    );
    let mut rows = Vec::new();
    println!(
        "| targets | memberships | distinct | bytes per membership (process) | (counted) | lookup p50 ns | p99 ns | as pairs p50 ns |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let steps = [
        1_000_000,
        3_000_000,
        10_000_000,
        30_000_000,
        100_000_000,
        300_000_000,
    ];
    for next in steps.into_iter().filter(|step| *step < goal).chain([goal]) {
        let grown = load.grow(next, || used().saturating_sub(start) < memory);
        let row = measure(&load, start);
        println!(
            "| {} | {} | {} | {:.1} | {:.1} | {} | {} | {} |",
            row.targets,
            row.memberships,
            row.distinct,
            row.process_bytes,
            row.counted_bytes,
            row.p50_ns,
            row.p99_ns,
            row.pairs_p50_ns
        );
        rows.push(row);
        if !grown {
            println!("\nIt ends here: more than {memory} bytes may not be taken.");
            break;
        }
    }
    rows
}

/// One index for each size.
fn each(
    title: &str,
    sizes: &[u32],
    shape: impl Fn(u32) -> (FleetShape, u64),
) -> Vec<(u32, IndexMeasurement)> {
    println!(
        "\n| {title} | memberships | distinct | lookup p50 ns | p99 ns | as pairs p50 ns |\n|---|---|---|---|---|---|"
    );
    let measured = sizes.iter().map(|size| {
        let (shape, memberships) = shape(*size);
        let start = used();
        let mut load = IndexLoad::new(shape, u64::MAX);
        load.grow(memberships, || true);
        let row = measure(&load, start);
        println!(
            "| {size} | {} | {} | {} | {} | {} |",
            row.memberships, row.distinct, row.p50_ns, row.p99_ns, row.pairs_p50_ns
        );
        (*size, row)
    });
    measured.collect()
}

#[expect(clippy::cast_precision_loss, reason = "it is drawn")]
fn plot(
    memberships: &[IndexMeasurement],
    targets: &[(u32, IndexMeasurement)],
    depth: &[(u32, IndexMeasurement)],
) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks");
    fs::create_dir_all(&folder)?;
    let latency = |x: &str, rows: &[(f64, &IndexMeasurement)]| {
        let series = |name, value: fn(&IndexMeasurement) -> u64| Series {
            name,
            points: rows
                .iter()
                .map(|(x, row)| (*x, value(row) as f64))
                .collect(),
        };
        Chart {
            title: format!("Lookup by {x}"),
            x: x.to_owned(),
            y: "nanoseconds".to_owned(),
            series: vec![
                series("p99", |row| row.p99_ns),
                series("p50 as pairs", |row| row.pairs_p50_ns),
                series("p50", |row| row.p50_ns),
            ],
        }
    };
    let rows: Vec<_> = memberships
        .iter()
        .map(|row| (row.memberships as f64, row))
        .collect();
    let bytes = |name, value: fn(&IndexMeasurement) -> f64| Series {
        name,
        points: memberships
            .iter()
            .map(|row| (row.memberships as f64, value(row)))
            .collect(),
    };
    let memory = Chart {
        title: "Memory by memberships".to_owned(),
        x: "memberships".to_owned(),
        y: "bytes per membership".to_owned(),
        series: vec![
            bytes("process", |row| row.process_bytes),
            bytes("counted", |row| row.counted_bytes),
        ],
    };
    fs::write(
        folder.join("index-memberships.svg"),
        draw(&[latency("memberships", &rows), memory]),
    )?;
    for (name, rows) in [("targets", targets), ("depth", depth)] {
        let points: Vec<_> = rows
            .iter()
            .map(|(size, row)| (f64::from(*size), row))
            .collect();
        let x = if name == "depth" {
            "blocks of the prompt"
        } else {
            "targets"
        };
        fs::write(
            folder.join(format!("index-{name}.svg")),
            draw(&[latency(x, &points)]),
        )?;
    }
    Ok(())
}
