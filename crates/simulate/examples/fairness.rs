//! Plays a tenant that asks one question at a time beside a tenant whose 51 agents send at the same
//! time, with and without shares by tenant, and tenants with equal and unequal weights that all wait.
//! Prints the figures, and draws them.
//!
//! ```sh
//! cargo run --release -p simulate --example fairness -- [PLOT.svg]
//! ```
#![allow(clippy::print_stdout, reason = "it is there to print")]

use std::{collections::BTreeMap, error::Error, fmt::Write as _, fs, time::Duration};

use engine_model::Profile;
use kv_blocks::BlockSize;
use routing::{Policy, QueueSettings, RoutingSettings};
use simulate::{Cell, RequestReport, Synthetic, Trace, TracePace, run_in_detail};

/// The tenant that asks; those with agents follow.
const ASKING: u64 = 1;

/// Rounds of the agents whose questions only warm the caches and are not counted, in seconds.
const WARM_UP_S: f64 = 10.0;

fn main() -> Result<(), Box<dyn Error>> {
    let profile: Profile = "8b-h200".parse()?;
    println!(
        "Workload synthetic:fanout, profile 8b-h200. TTFT of the questions, from arrival, in ms:\n"
    );
    println!(
        "| workers | agents every | run | p50 | p95 | p95, of alone | p95 of the wait in the queue | requests/s | prompt tokens computed/s |"
    );
    println!("|--:|--:|---|--:|--:|--:|--:|--:|--:|");
    let mut drawn = Vec::new();
    // The last one is more than the workers can do.
    for (workers, round_ms) in [(2, 3_000), (4, 1_500), (8, 750), (2, 2_000)] {
        let runs = three_runs(&profile, workers, round_ms)?;
        let alone = runs[0].ttft.1;
        for run in &runs {
            println!(
                "| {workers} | {round_ms} ms | {} | {:.0} | {:.0} | {:.2} | {:.0} | {:.2} | {:.0} |",
                run.name,
                run.ttft.0,
                run.ttft.1,
                run.ttft.1 / alone,
                run.wait_p95,
                run.requests_per_s,
                run.computed_per_s
            );
        }
        drawn.push((format!("{workers} workers, {round_ms} ms"), runs));
    }
    println!(
        "\nTenants that all wait: 4 with 200 agents each, 2 workers, until the first has none left.\n"
    );
    println!("| weights | work received, s | over the weight, of the mean | Jain index |");
    println!("|---|---|---|--:|");
    for weights in [[1.0; 4], [1.0, 1.0, 2.0, 4.0], [0.5, 1.0, 1.0, 8.0]] {
        for sees_tenants in [false, true] {
            print_shares(&profile, weights, sees_tenants)?;
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        fs::write(path, plot(&drawn)?)?;
    }
    Ok(())
}

/// The figures of the questions in one run.
struct Run {
    name: &'static str,
    /// The median and the 95th percentile.
    ttft: (f64, f64),
    wait_p95: f64,
    requests_per_s: f64,
    computed_per_s: f64,
}

fn three_runs(profile: &Profile, workers: u32, round_ms: u64) -> Result<[Run; 3], Box<dyn Error>> {
    let rounds = 600_000 / round_ms;
    let shape = format!("rounds={rounds}&round_ms={round_ms}&questions=400");
    let alone = trace(&format!("fanout?agents=0&{shape}"))?;
    let beside = trace(&format!("fanout?{shape}"))?;
    let run = |name, trace, tenants| Run::of(name, &played(profile, workers, trace, tenants));
    Ok([
        run("alone", &alone, None),
        run("beside 51 agents, one tenant", &beside, None),
        run(
            "beside 51 agents, two tenants",
            &beside,
            Some(BTreeMap::new()),
        ),
    ])
}

fn trace(name: &str) -> Result<Trace, Box<dyn Error>> {
    let size = BlockSize::new(64)?;
    Ok(Trace::read(&name.parse::<Synthetic>()?.text(size)?, size)?)
}

fn played(
    profile: &Profile,
    workers: u32,
    trace: &Trace,
    tenants: Option<BTreeMap<u64, f64>>,
) -> Vec<RequestReport> {
    let routing = RoutingSettings {
        policy: Policy::Warm,
        queue: QueueSettings::default(),
        ..RoutingSettings::default()
    };
    let cell = Cell {
        tenants,
        wait: Duration::from_secs(600),
        ..Cell::new(routing, workers, TracePace::faster(1.0), *profile)
    };
    run_in_detail(trace, &cell).1
}

impl Run {
    fn of(name: &'static str, requests: &[RequestReport]) -> Self {
        let counted = || {
            requests
                .iter()
                .filter(|request| request.arrival_s >= WARM_UP_S)
        };
        let asked = || counted().filter(|request| request.tenant == Some(ASKING));
        let ttft = sorted(asked().filter_map(|request| request.ttft_ms));
        let wait = |request: &RequestReport| Some((request.bound_s? - request.arrival_s) * 1e3);
        let waits = sorted(asked().filter_map(wait));
        let end = |request: &RequestReport| Some(request.arrival_s + request.e2e_ms? / 1e3);
        let seconds = counted().filter_map(end).fold(0.0, f64::max) - WARM_UP_S;
        let computed: f64 = counted()
            .map(|request| f64::from(request.computed_tokens))
            .sum();
        Self {
            name,
            ttft: (percentile(&ttft, 50), percentile(&ttft, 95)),
            wait_p95: percentile(&waits, 95),
            requests_per_s: counted().filter_map(end).count() as f64 / seconds,
            computed_per_s: computed / seconds,
        }
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}

/// Prints how tenants share the workers as long as all of them wait.
fn print_shares(
    profile: &Profile,
    weights: [f64; 4],
    sees_tenants: bool,
) -> Result<(), Box<dyn Error>> {
    // Nothing is shared: with prompts of their own, tenants would wait for the workers that hold them,
    // and share these.
    let trace =
        trace("fanout?agents=200&tenants=4&rounds=1&questions=0&system_tokens=1&task_tokens=4000")?;
    let numbered = (2..).zip(weights).collect();
    let requests = played(profile, 2, &trace, sees_tenants.then_some(numbered));
    let work = |request: &RequestReport, traced: &simulate::TraceRequest| {
        let cached = traced.prompt_tokens - request.computed_tokens;
        let context = f64::from(traced.prompt_tokens + traced.output_tokens / 2);
        let token_ms = profile.sequence_ms + profile.kv_token_ms * context;
        profile.prefill_ms_of(cached, traced.prompt_tokens)
            + f64::from(traced.output_tokens) * token_ms
    };
    let last = |tenant: u64| {
        let bound = requests
            .iter()
            .filter(|request| request.tenant == Some(tenant));
        bound
            .filter_map(|request| request.bound_s)
            .fold(0.0, f64::max)
    };
    let first_without = (2..6).map(last).fold(f64::INFINITY, f64::min);
    let received: Vec<f64> = (2..6)
        .map(|tenant| {
            let bound = requests.iter().zip(&trace.requests).filter(|(request, _)| {
                request.tenant == Some(tenant)
                    && request.bound_s.is_some_and(|at| at <= first_without)
            });
            bound.map(|(request, traced)| work(request, traced)).sum()
        })
        .collect();
    let shares: Vec<f64> = received
        .iter()
        .zip(weights)
        .map(|(work, weight)| work / weight)
        .collect();
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let list = |values: &mut dyn Iterator<Item = f64>| {
        values
            .map(|value| format!("{value:.2}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    println!(
        "| {} | {} | {} | {:.3} |",
        if sees_tenants {
            weights.map(|weight| weight.to_string()).join(", ")
        } else {
            "one tenant".to_owned()
        },
        list(&mut received.iter().map(|ms| ms / 1e3)),
        list(&mut shares.iter().map(|share| share * shares.len() as f64 / sum)),
        sum * sum / (shares.len() as f64 * squares),
    );
    Ok(())
}

/// Draws the p95 of the questions as bars.
fn plot(cells: &[(String, [Run; 3])]) -> Result<String, std::fmt::Error> {
    /// Longer bars are cut: an overload has no end.
    const MOST_MS: f64 = 1_000.0;
    const COLOURS: [&str; 3] = ["#8aa4bd", "#a0672f", "#3f6f4f"];
    let mut svg = String::from(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 320" font-family="sans-serif" font-size="12">
<rect width="820" height="320" fill="#ffffff"/>
<text x="16" y="22" font-size="14">Time to first token of single questions, p95, ms (bars end at 1,000)</text>
"##,
    );
    for (number, (name, runs)) in cells.iter().enumerate() {
        let left = 40 + 200 * number;
        for (bar, run) in runs.iter().enumerate() {
            let height = 190.0 * (run.ttft.1 / MOST_MS).min(1.0);
            let (x, y) = (left + 50 * bar, 250.0 - height);
            writeln!(
                svg,
                r#"<rect x="{x}" y="{y:.1}" width="44" height="{height:.1}" fill="{}"/>"#,
                COLOURS[bar]
            )?;
            writeln!(
                svg,
                r#"<text x="{}" y="{:.1}" text-anchor="middle">{:.0}</text>"#,
                x + 22,
                y - 4.0,
                run.ttft.1
            )?;
        }
        writeln!(
            svg,
            r#"<text x="{}" y="268" text-anchor="middle">{name}</text>"#,
            left + 72
        )?;
    }
    for (number, name) in [
        "alone",
        "beside 51 agents, one tenant",
        "beside 51 agents, two tenants",
    ]
    .iter()
    .enumerate()
    {
        let x = [40, 120, 350][number];
        writeln!(
            svg,
            r#"<rect x="{x}" y="286" width="12" height="12" fill="{}"/><text x="{}" y="296">{name}</text>"#,
            COLOURS[number],
            x + 18
        )?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}
