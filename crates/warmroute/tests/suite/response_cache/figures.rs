//! Measures the benefit and the cost of the cache. Not a test: it passes whatever it prints.
//!
//! ```sh
//! CACHE_PLOT=docs/benchmarks/cache.svg cargo test -p warmroute --test suite response_cache::figures -- --ignored --nocapture
//! ```

use std::{fmt::Write as _, time::Duration};

use serde_json::{Value, json};

use super::{CachedRouter, chat_body, with};
use crate::harness::{Program, RawClient, RawReply, RouterQueries as _, Stopwatch, words};

const REQUESTS: usize = 600;
const QUESTIONS: usize = 120;

/// Questions about a few documents; some are far more frequent than others.
fn workload() -> Vec<Value> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut draw = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(state >> 32).unwrap_or_default()) / f64::from(u32::MAX)
    };
    let body = |n: usize| {
        let document = words(&format!("document {}", n % 8), 300);
        let messages = json!([{"role": "system", "content": document}, {"role": "user", "content": format!("Question {n}?")}]);
        json!({"model": "sim", "messages": messages, "temperature": 0, "max_tokens": 24, "stream": true})
    };
    // The k-th question is about 1/k as frequent as the first.
    let weights: Vec<f64> = (1..=QUESTIONS).map(|k| 1.0 / k as f64).collect();
    let all: f64 = weights.iter().sum();
    let mut pick = || {
        let mut left = draw() * all;
        weights.iter().position(|weight| {
            left -= weight;
            left <= 0.0
        })
    };
    (0..REQUESTS).map(|_| body(pick().unwrap_or(0))).collect()
}

fn timed(address: &str, bodies: &[Value]) -> (Vec<f64>, usize) {
    let mut client = RawClient::connect(address);
    let (mut took, mut hits) = (Vec::new(), 0);
    for body in bodies {
        let watch = Stopwatch::start();
        client.send(
            "POST",
            "/v1/chat/completions",
            &[],
            body.to_string().as_bytes(),
        );
        let reply: RawReply = client.reply();
        took.push(watch.elapsed().as_secs_f64() * 1e3);
        assert_eq!(reply.status, 200);
        hits += usize::from(reply.header("x-cache") == Some("HIT"));
    }
    took.sort_by(f64::total_cmp);
    (took, hits)
}

/// The percentile: `percent` of the values are not above it.
fn at(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100]
}

#[test]
#[ignore = "a measurement"]
fn repeated_questions_beside_the_engine_itself() {
    let engine = Program::engine(&["--itl-ms", "4", "--no-kv-events"]);
    let bodies = workload();
    let (direct, _) = timed(&engine.data(), &bodies);
    let mut rows = vec![("the engine itself", direct, 0)];
    for (name, config) in [
        (
            "router, cache off",
            "cache: {enable_deduplication: false}\n",
        ),
        (
            "router, cache in memory",
            "response_cache: {enabled: true}\n",
        ),
    ] {
        let router = Program::serve_with(config, &[engine.url()], &[]).ready(1);
        let (took, hits) = timed(&router.data(), &bodies);
        rows.push((name, took, hits));
    }
    println!(
        "| | hits | mean, ms | p50 | p90 | p99 | mean beside the engine |\n|---|--:|--:|--:|--:|--:|--:|"
    );
    let mean = |took: &[f64]| took.iter().sum::<f64>() / took.len() as f64;
    let engine_mean = mean(&rows[0].1);
    for (name, took, hits) in &rows {
        println!(
            "| {name} | {:.1} % | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            100.0 * *hits as f64 / REQUESTS as f64,
            mean(took),
            at(took, 50),
            at(took, 90),
            at(took, 99),
            mean(took) / engine_mean,
        );
    }
    if let Some(path) = std::env::var_os("CACHE_PLOT") {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::fs::write(root.join(path), plot(&rows)).expect("the plot can be written");
    }
}

#[test]
#[ignore = "a measurement"]
fn a_hit_in_memory() {
    let cached = CachedRouter::start("");
    for (what, words) in [("0.3 KB", 1), ("4 KB", 600), ("64 KB", 10_000)] {
        let body = with(
            chat_body(&crate::harness::words("why", words)),
            "max_tokens",
            json!(8),
        );
        cached.status(&body);
        let mut stage: Vec<f64> = (0..200)
            .map(|_| {
                let reply = cached.send(&body);
                assert_eq!(reply.header("x-cache"), Some("HIT"));
                cached.router.receipt_of(&reply)["timing_us"]["cache"]
                    .as_f64()
                    .expect("a time")
            })
            .collect();
        stage.sort_by(f64::total_cmp);
        let bytes = body.to_string().len();
        println!(
            "a hit, body of {what} ({bytes} bytes): read, key and lookup p50 {:.1} us, p90 {:.1} us",
            at(&stage, 50),
            at(&stage, 90)
        );
    }
    // CPU time of the whole router, compared with a request that is refused as soon as its body is
    // read.
    let body = chat_body("why?").to_string();
    cached.send(&chat_body("why?"));
    let spent = |path: &str, body: &[u8]| {
        let mut client = RawClient::connect(&cached.router.data());
        let before = processor_time(&cached.router);
        for _ in 0..4_000 {
            client.send("POST", path, &[], body);
            client.reply();
        }
        (processor_time(&cached.router) - before).as_secs_f64() * 1e6 / 4_000.0
    };
    let (hit, refused) = (
        spent("/v1/chat/completions", body.as_bytes()),
        spent("/v1/chat/completions", b"[1]"),
    );
    println!(
        "processor time of a request: hit {hit:.1} us, refused after reading {refused:.1} us, difference {:.1} us",
        hit - refused
    );
}

fn processor_time(program: &Program) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.pid()))
        .expect("a process has a stat");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .collect();
    let ticks: u64 = [11, 12]
        .iter()
        .map(|at| fields[*at].parse::<u64>().expect("ticks"))
        .sum();
    Duration::from_millis(ticks * 10)
}

/// Shares of requests by their duration, on a logarithmic axis.
fn plot(rows: &[(&str, Vec<f64>, usize)]) -> String {
    const WIDTH: f64 = 640.0;
    const HEIGHT: f64 = 320.0;
    let x = |ms: f64| 60.0 + (ms.max(0.1).log10() + 1.0) / 4.0 * (WIDTH - 80.0);
    let y = |share: f64| HEIGHT - 40.0 - share * (HEIGHT - 70.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for power in -1..=3 {
        let (ms, at) = (10_f64.powi(power), x(10_f64.powi(power)));
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{ms} ms</text>",
            y(0.0),
            y(1.0),
            HEIGHT - 24.0
        );
    }
    for share in [0.0, 0.5, 1.0] {
        let _ = writeln!(
            svg,
            "<text x=\"52\" y=\"{:.1}\" text-anchor=\"end\">{:.0} %</text>",
            y(share) + 4.0,
            share * 100.0
        );
    }
    for (number, (name, took, _)) in rows.iter().enumerate() {
        let colour = ["#888", "#d97706", "#2563eb"][number];
        let points: String = took
            .iter()
            .enumerate()
            .map(|(n, ms)| {
                format!(
                    "{:.1},{:.1} ",
                    x(*ms),
                    y((n + 1) as f64 / took.len() as f64)
                )
            })
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            points.trim_end()
        );
        let _ = writeln!(
            svg,
            "<text x=\"70\" y=\"{}\" fill=\"{colour}\">{name}</text>",
            24 + 14 * number
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">time to the end of the reply; share of requests that were done by then</text>\n</svg>",
        WIDTH / 2.0,
        HEIGHT - 6.0
    );
    svg
}
