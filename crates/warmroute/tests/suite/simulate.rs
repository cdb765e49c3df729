//! `warmroute simulate` reads a trace, plays it and reports the results.

use std::{fs, path::PathBuf};

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::Value;

use crate::harness::{FinishedProgram, Program};

const CONVERSATION: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/traces/conversation-300.jsonl"
);

fn simulate(trace: &str, flags: &[&str]) -> FinishedProgram {
    Program::finish(&[&["simulate", "--trace", trace], flags].concat())
}

fn report(trace: &str, flags: &[&str]) -> Value {
    let finished = simulate(trace, &[flags, &["--json"]].concat());
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(
        finished.stdout.lines().count(),
        1,
        "stdout is one JSON object"
    );
    assert_eq!(finished.stderr, "", "progress is for terminals");
    serde_json::from_str(&finished.stdout).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

/// A file that is deleted with its folder.
fn written(folder: &tempfile::TempDir, name: &str, content: &[u8]) -> String {
    let path: PathBuf = folder.path().join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_json_report_has_its_documented_shape_and_a_cell_for_each_combination() {
    let report = report(
        CONVERSATION,
        &[
            "--policy",
            "round_robin,least_loaded",
            "--policy",
            "warm",
            "--workers",
            "2,4",
            "--load",
            "0.3,0.55",
        ],
    );
    assert_eq!(
        keys(&report),
        ["schema", "trace", "profile", "seed", "cells"]
    );
    assert_eq!(report["schema"], "warmroute.simulation/1");
    assert_eq!(
        keys(&report["trace"]),
        [
            "file",
            "requests",
            "dropped",
            "blocks",
            "infinite_hit_ratio"
        ]
    );
    assert_eq!(
        (&report["profile"], &report["seed"]),
        (&Value::from("8b-h200"), &Value::from(1))
    );
    let cells = report["cells"].as_array().unwrap();
    let order: Vec<_> = cells
        .iter()
        .map(|cell| [&cell["workers"], &cell["load"], &cell["policy"]])
        .collect();
    assert_eq!(cells.len(), 12);
    assert_eq!(
        order[1],
        [
            &Value::from(2),
            &Value::from(0.3),
            &Value::from("least_loaded")
        ]
    );
    assert_eq!(
        order[11],
        [&Value::from(4), &Value::from(0.55), &Value::from("warm")]
    );
    assert_eq!(
        keys(&cells[0]),
        [
            "policy",
            "workers",
            "load",
            "speedup",
            "finished",
            "unfinished",
            "block_hit_ratio",
            "token_hit_ratio",
            "ttft_ms",
            "itl_ms",
            "e2e_ms",
            "prefill_imbalance",
            "held_ratio",
            "per_worker"
        ]
    );
    assert_eq!(
        keys(&cells[0]["ttft_ms"]),
        ["mean", "p50", "p90", "p99", "max"]
    );
    assert_eq!(keys(&cells[0]["itl_ms"]), ["mean", "p99"]);
    assert_eq!(keys(&cells[0]["e2e_ms"]), ["mean", "p99"]);
    assert_eq!(
        keys(&cells[0]["per_worker"][0]),
        ["requests", "computed_tokens", "hit_tokens"]
    );
    assert_eq!(cells[0]["per_worker"].as_array().unwrap().len(), 2);
}

#[test]
fn a_compressed_trace_gives_the_same_bytes_as_a_plain_one_and_as_the_run_before() {
    let folder = tempfile::tempdir().unwrap();
    let plain = fs::read(CONVERSATION).unwrap();
    let compressed = compress_to_vec(plain.as_slice(), CompressionLevel::Fastest);
    let trace = written(&folder, "trace", &plain);
    let flags = ["--policy", "random,warm", "--workers", "4", "--json"];
    let (first, second) = (
        simulate(&trace, &flags).stdout,
        simulate(&trace, &flags).stdout,
    );
    assert_eq!(first, second);
    fs::write(&trace, compressed).unwrap();
    assert_eq!(first, simulate(&trace, &flags).stdout);
}

#[test]
fn the_table_has_a_line_for_each_experiment() {
    let finished = simulate(CONVERSATION, &["--workers", "2", "--speedup", "1.5"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert!(lines[0].contains("300 requests"), "{}", lines[0]);
    assert!(lines[3].starts_with("policy"), "{}", lines[3]);
    assert!(
        lines[4].starts_with("round_robin  ") && lines[4].contains("1.500"),
        "{}",
        lines[4]
    );
    assert!(lines[5].starts_with("warm  "), "{}", lines[5]);
    assert_eq!(lines.len(), 6);
}

const CHAT: &str = "synthetic:chat?sessions=30&seed=7";

#[test]
fn a_synthetic_workload_gives_the_same_figures_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder
        .path()
        .join("chat.jsonl")
        .to_str()
        .unwrap()
        .to_owned();
    let written = simulate(CHAT, &["--write-trace", &file]);
    assert_eq!(
        (written.code, written.stdout.as_str()),
        (Some(0), ""),
        "{}",
        written.stderr
    );
    let flags = ["--policy", "warm", "--workers", "2"];
    let (made_up, read) = (report(CHAT, &flags), report(&file, &flags));
    assert_eq!(made_up["trace"]["file"], CHAT);
    assert_eq!(made_up["cells"], read["cells"]);
    assert_ne!(
        report("synthetic:chat?sessions=30&seed=8", &flags)["cells"],
        read["cells"]
    );
}

#[test]
fn the_report_is_written_as_json_as_a_page_or_as_both_and_still_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, page, both) = (path("a.json"), path("a.html"), path("both"));
    let flags = [
        "--workers",
        "2",
        "--json",
        "--out",
        &json,
        "--out",
        &page,
        "--out",
        &both,
    ];
    let finished = simulate(CHAT, &flags);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(fs::read_to_string(&json).unwrap(), finished.stdout);
    let html = fs::read_to_string(&page).unwrap();
    assert!(
        html.starts_with("<!DOCTYPE html>")
            && html.contains("synthetic:chat?sessions=30&amp;seed=7"),
        "{html}"
    );
    assert_eq!(
        fs::read_to_string(format!("{both}/report.json")).unwrap(),
        finished.stdout
    );
    assert_eq!(
        fs::read_to_string(format!("{both}/report.html")).unwrap(),
        html
    );
    simulate(CHAT, &flags);
    assert_eq!(fs::read_to_string(&page).unwrap(), html, "the same bytes");
}

const AGENTS: &str = "synthetic:agents?runs=20";

/// Short closed loops on engines that are slow enough for them.
const SHORT: [&str; 8] = [
    "--workers",
    "1",
    "--profile",
    "toy",
    "--warm-up-s",
    "60",
    "--measured-s",
    "300",
];

#[test]
fn a_closed_loop_has_its_documented_shape_and_a_cell_for_each_number_of_sessions() {
    let report = report(AGENTS, &[&SHORT[..], &["--sessions", "1,4"]].concat());
    let cells = report["cells"].as_array().unwrap();
    let order: Vec<_> = cells
        .iter()
        .map(|cell| [&cell["sessions"]["concurrent"], &cell["policy"]])
        .collect();
    let (few, more) = (Value::from(1), Value::from(4));
    let (turns, warm) = (Value::from("round_robin"), Value::from("warm"));
    assert_eq!(
        order,
        [
            [&few, &turns],
            [&few, &warm],
            [&more, &turns],
            [&more, &warm]
        ]
    );
    assert_eq!(keys(&cells[0])[..5].last(), Some(&"sessions"));
    assert_eq!(
        keys(&cells[0]["sessions"]),
        [
            "concurrent",
            "capacity_ratio",
            "warm_up_s",
            "measured_s",
            "turns_per_minute",
            "finished",
            "reuse_ratio",
            "ttft_p95_ms",
            "longest_wait_ms",
            "jain_index"
        ]
    );
}

#[test]
fn a_search_reports_the_most_sessions_within_its_goal() {
    let flags = [&SHORT[..], &["--find-sessions", "ttft_ms=3000"]].concat();
    let report = report(AGENTS, &[&flags[..], &["--policy", "warm"]].concat());
    let sessions = &report["cells"][0]["sessions"];
    assert_eq!(
        keys(&sessions["goal"]),
        ["ttft_ms", "share_within", "most_sessions"]
    );
    assert!(sessions["concurrent"].as_u64() >= Some(1), "{sessions}");
    assert_eq!(sessions["goal"]["most_sessions"], sessions["concurrent"]);
    assert!(sessions["goal"]["share_within"].as_f64() >= Some(0.95));
}

#[test]
fn the_table_of_closed_loops_has_their_figures() {
    let flags = [&SHORT[..], &["--capacity-ratio", "0.5"]].concat();
    let finished = simulate(AGENTS, &flags);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    for part in ["the first 60 s are not counted", "turns/min", "Jain"] {
        assert!(finished.stdout.contains(part), "{}", finished.stdout);
    }
}

#[test]
fn a_trace_without_sessions_is_refused_for_a_closed_loop() {
    let finished = simulate(CONVERSATION, &["--sessions", "4"]);
    assert_eq!(finished.code, Some(78), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("expected session_id or session"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_file_that_cannot_be_written_ends_with_1_after_the_report() {
    let finished = simulate(CHAT, &["--workers", "2", "--out", "/nowhere/at/all.json"]);
    assert_eq!(finished.code, Some(1));
    assert!(
        finished.stdout.contains("round_robin"),
        "{}",
        finished.stdout
    );
    assert!(
        finished
            .stderr
            .contains("/nowhere/at/all.json cannot be written"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_key_of_the_configuration_changes_what_is_simulated() {
    let agents = "synthetic:agents?runs=40&minutes=1";
    let queued = |settings: &[&str]| {
        let flags = [
            &[
                "--policy",
                "warm",
                "--workers",
                "2",
                "--profile",
                "70b-h100x2",
            ],
            settings,
        ]
        .concat();
        report(agents, &flags)["cells"][0]["held_ratio"]
            .as_f64()
            .unwrap()
    };
    assert!(queued(&[]) > 0.0);
    assert_eq!(queued(&["--set", "queue.enabled=false"]), 0.0);
    assert_eq!(
        queued(&["--set", "queue.hold_above=3600s", "--set", "queue.ageing=1"]),
        0.0
    );
}

#[test]
fn a_target_for_first_tokens_adds_the_share_that_meets_it_and_the_accuracy_of_predictions() {
    let flags = ["--policy", "warm,round_robin", "--workers", "2"];
    let with = |more: &[&str]| report(CHAT, &[&flags[..], more].concat());
    let plain = with(&[]);
    assert!(plain["cells"][0].get("slo").is_none());
    let aimed = with(&["--slo-ttft-ms", "1500"]);
    let [warm, round_robin] = [0, 1].map(|cell| aimed["cells"][cell]["slo"].clone());
    assert_eq!(keys(&warm), ["ttft_ms", "met_share", "predictions"]);
    assert_eq!(
        keys(&warm["predictions"]),
        ["requests", "p05", "p50", "p95", "close_share"]
    );
    assert_eq!(keys(&round_robin), ["ttft_ms", "met_share"]);
    assert_eq!(warm["ttft_ms"], 1500.0);
    assert_eq!(
        with(&["--set", "routing.slo.ttft=1500ms"]),
        aimed,
        "the flag sets the key"
    );
}

#[test]
fn a_slow_engine_and_a_cleared_index_change_the_figures() {
    let ttft = |flag: &str, value: &str| {
        let flags = [
            "--policy",
            "warm",
            "--workers",
            "2",
            "--speedup",
            "1",
            flag,
            value,
        ];
        report(CHAT, &flags)["cells"][0]["ttft_ms"]["mean"]
            .as_f64()
            .unwrap()
    };
    let usual = ttft("--seed", "1");
    assert!(ttft("--slow", "w2=3.0") > usual);
    assert!(ttft("--forget", "w1=300") > usual);
}

#[test]
fn an_invalid_flag_ends_with_2_and_names_the_expected_value() {
    for (flags, expected) in [
        (&["--policy", "best"][..], "expected one of round_robin"),
        (&["--profile", "abacus"], "expected one of toy, 8b-h200"),
        (&["--load", "0"], "expected a number above 0"),
        (&["--load", "0.5", "--speedup", "2"], "cannot be used with"),
        (&["--event-loss", "1.5"], "expected a number from 0 to 1"),
        (&["--trace-block-tokens", "0"], "expected 1 to 65536 tokens"),
        (&["--workers", "0"], "0 is not in 1..="),
        (&["--kv-tokens", "1000"], "give it more with --kv-tokens"),
        (
            &["--set", "queue.enabledd=false"],
            "did you mean `queue.enabled`?",
        ),
        (
            &["--set", "queue.ageing=old"],
            "--set: queue.ageing: cannot use `old`: expected a number",
        ),
        (&["--set", "queue"], "expected NAME=VALUE"),
        (&["--slow", "w1=0"], "such as w1=3.0"),
        (
            &["--slow", "w9=2"],
            "there is no w9: expected one of w1 to w8",
        ),
        (&["--forget", "0=2"], "such as w1=30"),
        (&["--out", "report.pdf"], "and .pdf is neither"),
        (&["--sessions", "0"], "0 is not in 1..=100000"),
        (&["--sessions", "2", "--load", "0.5"], "cannot be used with"),
        (
            &["--sessions", "2", "--capacity-ratio", "1"],
            "cannot be used with",
        ),
        (
            &["--capacity-ratio", "0"],
            "expected a number above 0, at most 100",
        ),
        (&["--find-sessions", "2000"], "such as ttft_ms=2000"),
        (&["--measured-s", "60"], "required arguments"),
    ] {
        let finished = simulate(CONVERSATION, flags);
        assert_eq!(finished.code, Some(2), "{flags:?}");
        assert!(
            finished.stderr.contains(expected),
            "{flags:?}: {}",
            finished.stderr
        );
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn an_unknown_synthetic_workload_is_refused_with_the_known_ones() {
    for (trace, expected) in [
        ("synthetic:chatter", "expected one of chat, agents, tenants"),
        (
            "synthetic:chat?sesions=1",
            "expected one of sessions, turns",
        ),
        (
            "synthetic:tenants?skew=9",
            "expected a whole number from 0 to 3",
        ),
    ] {
        let finished = simulate(trace, &[]);
        assert_eq!(finished.code, Some(2), "{trace}");
        assert!(
            finished.stderr.contains(expected),
            "{trace}: {}",
            finished.stderr
        );
    }
}

#[test]
fn an_invalid_trace_ends_with_78_and_names_file_line_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let good = br#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}"#;
    let bad =
        br#"{"timestamp": 1, "input_length": "many", "output_length": 5, "hash_ids": [1, 2]}"#;
    let traces = [
        (
            written(&folder, "field", &[&good[..], b"\n", bad].concat()),
            "line 2: input_length is \"many\": expected tokens",
        ),
        (
            written(&folder, "empty", b"\n"),
            "there is no request in it",
        ),
        (written(&folder, "bytes", b"\x00\xff"), "byte 1 is no UTF-8"),
        (
            written(&folder, "torn", b"\x28\xb5\x2f\xfd\x00"),
            "cannot be decompressed",
        ),
        (
            folder.path().join("missing").to_str().unwrap().to_owned(),
            "cannot be read",
        ),
    ];
    for (trace, expected) in traces {
        let finished = simulate(&trace, &["--json"]);
        assert_eq!(finished.code, Some(78), "{trace}: {}", finished.stderr);
        assert!(
            finished
                .stderr
                .starts_with(&format!("warmroute simulate: {trace}: ")),
            "{}",
            finished.stderr
        );
        assert!(
            finished.stderr.contains(expected),
            "{trace}: {}",
            finished.stderr
        );
    }
}

#[test]
fn requests_that_do_not_fit_an_engine_are_skipped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let line = |tokens: u32| {
        format!(
            r#"{{"timestamp": {tokens}, "input_length": {tokens}, "output_length": 5, "hash_ids": []}}"#
        )
    };
    let trace = written(
        &folder,
        "trace",
        [line(600), line(50_000)].join("\n").as_bytes(),
    );
    let report = report(&trace, &["--kv-tokens", "20000", "--workers", "1"]);
    assert_eq!(
        (&report["trace"]["requests"], &report["trace"]["dropped"]),
        (&Value::from(1), &Value::from(1))
    );
}

#[test]
fn settings_of_a_model_apply_to_the_requests_that_the_flag_gives_it() {
    let fleet = ["--workers", "2", "--policy"];
    let set = ["warm", "--set", "routing.models.m.policy=round_robin"];
    let refused = simulate(CONVERSATION, &[&fleet[..], &set].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let problem = "--set: routing.models.m: no request of the trace is of such a model: ";
    assert!(refused.stderr.contains(problem), "{}", refused.stderr);
    let by_model = report(
        CONVERSATION,
        &[&fleet[..], &set, &["--model", "m"]].concat(),
    );
    let in_turns = report(CONVERSATION, &[&fleet[..], &["round_robin"]].concat());
    let engines = |report: &Value| report["cells"][0]["per_worker"].clone();
    assert_eq!(engines(&by_model), engines(&in_turns));
    let by_cost = report(CONVERSATION, &[&fleet[..], &["warm"]].concat());
    assert_ne!(engines(&by_model), engines(&by_cost));
}
