//! Compares times to first token in real and in virtual time. A run takes minutes and needs a
//! machine with spare capacity:
//!
//! ```sh
//! cargo test --release -p warmroute --test suite agreement:: -- --ignored --nocapture --test-threads 1
//! ```

#![allow(clippy::print_stdout, reason = "the figures are what it is for")]

use std::{thread, time::Duration};

use routing::Policy;
use serde_json::Value;

use super::{
    fleet::{AgreementFleet, seen},
    workload::AgreementWorkload,
};
use crate::harness::{Program, RawClient, RoutedFleet, Stopwatch};

/// Largest relative difference between the two.
const HITS: f64 = 0.02;
const TTFT: f64 = 0.10;

/// Seconds of arrivals; a run takes about as long.
const SECONDS: u64 = 45;
const CHAT: &str = "chat?sessions=180&turns=5&system_tokens=800&user_tokens=400&output_tokens=24&think_s=8&minutes=1";

/// Mean time to first token and the cached share of the prompts' tokens.
#[derive(Clone, Copy, Debug)]
struct TimeFigures {
    ttft_ms: f64,
    hits: f64,
}

#[test]
#[ignore = "measures time: see the head of the file"]
fn simulated_and_real_engines_agree_on_hits_and_time_to_first_token() {
    let workload = AgreementWorkload::of(CHAT, SECONDS);
    println!("{} requests in {SECONDS} s", workload.len());
    println!("policy       hits simulated, over sockets      mean TTFT simulated, over sockets");
    let mut apart = Vec::new();
    for policy in [Policy::RoundRobin, Policy::Warm] {
        let fleet = AgreementFleet {
            policy,
            blocks: 600,
        };
        let (ours, real) = (simulated(fleet, &workload), over_sockets(fleet, &workload));
        let (hits, ttft) = (
            real.hits / ours.hits - 1.0,
            real.ttft_ms / ours.ttft_ms - 1.0,
        );
        println!(
            "{:<12} {:.2} %, {:.2} % ({:+.1} %)      {:.1} ms, {:.1} ms ({:+.1} %)",
            policy.as_str(),
            ours.hits * 100.0,
            real.hits * 100.0,
            hits * 100.0,
            ours.ttft_ms,
            real.ttft_ms,
            ttft * 100.0
        );
        if hits.abs() > HITS || ttft.abs() > TTFT {
            apart.push(policy);
        }
    }
    assert!(apart.is_empty(), "too far apart: {apart:?}");
}

#[test]
#[ignore = "measures time: see the head of the file"]
fn engine_times_fitted_from_the_decision_log_match_the_engines() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("decisions.jsonl").display().to_string();
    let fleet = AgreementFleet {
        policy: Policy::RoundRobin,
        blocks: 600,
    };
    let routed = fleet.started("1", &format!("decision_log: {{path: \"{log}\"}}\n"));
    first_token_times(&routed, &AgreementWorkload::of(CHAT, SECONDS));
    let RoutedFleet {
        router,
        engines: _engines,
        ..
    } = routed;
    router.signal("TERM");
    assert_eq!(router.wait().code, Some(0));
    let finished = Program::finish(&[
        "simulate",
        "--trace",
        "synthetic:chat?sessions=9",
        "--fit",
        &log,
        "--json",
    ]);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    println!("{:#}", report["fit"]);
    let truth = fleet.profile();
    let of = |name: &str| report["fit"][name].as_f64().unwrap();
    for tokens in [200.0, 1_000.0, 3_000.0] {
        let found = of("overhead_ms")
            + of("step_ms")
            + of("prefill_ms") * tokens
            + of("attention_ms") * tokens * tokens;
        let real = truth.overhead_ms + truth.step_ms + truth.prefill_ms * tokens;
        println!("{tokens} tokens: {found:.1} ms, {real:.1} ms in truth");
        assert!((found / real - 1.0).abs() <= TTFT, "{tokens} tokens");
    }
    let step = of("step_ms") + 4.0 * (of("sequence_ms") + of("kv_token_ms") * 1_500.0);
    println!(
        "a step with four sequences: {step:.1} ms, {:.1} ms in truth",
        truth.step_ms
    );
    assert!((step / truth.step_ms - 1.0).abs() <= TTFT);
}

fn simulated(fleet: AgreementFleet, workload: &AgreementWorkload) -> TimeFigures {
    let trace = workload.trace();
    let requests = fleet.simulated(&trace);
    let prompts: u32 = trace
        .requests
        .iter()
        .map(|request| request.prompt_tokens)
        .sum();
    let computed: u32 = requests.iter().map(|request| request.computed_tokens).sum();
    let ttft_ms: f64 = requests
        .iter()
        .map(|request| request.ttft_ms.unwrap())
        .sum();
    TimeFigures {
        ttft_ms: ttft_ms / requests.len() as f64,
        hits: 1.0 - f64::from(computed) / f64::from(prompts),
    }
}

fn over_sockets(fleet: AgreementFleet, workload: &AgreementWorkload) -> TimeFigures {
    let routed = fleet.started("1", "");
    let waits = first_token_times(&routed, workload);
    let seen = seen(&routed);
    TimeFigures {
        ttft_ms: waits.iter().map(Duration::as_secs_f64).sum::<f64>() * 1e3 / waits.len() as f64,
        hits: seen.cached_tokens as f64 / seen.prompt_tokens as f64,
    }
}

/// Measures each time to first token; every request is sent at its arrival time, independent of
/// earlier requests.
fn first_token_times(routed: &RoutedFleet, workload: &AgreementWorkload) -> Vec<Duration> {
    let (address, begun) = (routed.router.data(), Stopwatch::start());
    thread::scope(|scope| {
        let send = |request| {
            let (address, body) = (address.clone(), workload.body(request).to_string());
            let arrival = Duration::from_millis(workload.arrival_ms(request));
            thread::sleep(arrival.saturating_sub(begun.elapsed()));
            scope.spawn(move || first_token(&address, &body))
        };
        let clients: Vec<_> = (0..workload.len()).map(send).collect();
        clients
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn first_token(address: &str, body: &str) -> Duration {
    let sent = Stopwatch::start();
    let mut client = RawClient::connect(address);
    client.send("POST", "/v1/completions", &[], body.as_bytes());
    let head = client.head();
    assert_eq!(head.status, 200);
    let first = client.chunk().unwrap();
    let waited = sent.elapsed();
    assert!(
        first.starts_with(b"data: {"),
        "{}",
        String::from_utf8_lossy(&first)
    );
    assert!(client.body(head).clean);
    waited
}
