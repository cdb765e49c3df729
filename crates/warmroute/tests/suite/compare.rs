//! `warmroute compare` reads traces, compares `warm` with the rules of other routers and says whether
//! it is within its bounds.

use std::{fs, path::PathBuf};

use serde_json::Value;

use crate::harness::{FinishedProgram, Program};

const CONVERSATION: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/traces/conversation-300.jsonl"
);

fn compare(flags: &[&str]) -> FinishedProgram {
    Program::finish(&[&["compare", "--workers", "2"], flags].concat())
}

/// The names of a JSON object's fields.
fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn the_json_has_its_documented_shape_and_the_exit_code_says_whether_there_are_losses() {
    let finished = compare(&["--json", CONVERSATION]);
    assert_eq!(finished.stderr, "", "progress is for terminals");
    assert_eq!(finished.stdout.lines().count(), 1);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(
        keys(&report),
        [
            "schema",
            "profile",
            "workers",
            "ttft_slo_ms",
            "seed",
            "cells",
            "losses"
        ]
    );
    assert_eq!(report["schema"], "warmroute.comparison/1");
    let losses = report["losses"].as_array().unwrap();
    let code = if losses.is_empty() { 0 } else { 3 };
    assert_eq!(finished.code, Some(code), "{losses:?}");
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 1);
    assert_eq!(keys(&cells[0]), ["trace", "requests", "pace", "rows"]);
    assert_eq!(cells[0]["trace"], "conversation-300");
    assert_eq!(cells[0]["requests"], 300);
    assert_eq!(cells[0]["pace"]["load"], 0.55);
    let rows = cells[0]["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["contender"].as_str()).collect();
    let expected = [
        "warm",
        "warm + live_set",
        "lmetric",
        "dualmap",
        "sticky",
        "dynamo_cost",
        "cache_aware",
        "power_of_two",
        "round_robin",
    ];
    assert_eq!(names, expected.map(Some));
    for row in rows {
        assert_eq!(
            keys(row),
            [
                "contender",
                "reuse_ratio",
                "turns_per_minute",
                "ttft_p95_ms",
                "prefill_imbalance"
            ]
        );
        assert!(row["turns_per_minute"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn the_table_is_printed_and_written_with_the_same_bytes_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (first, second) = (path("first"), path("second"));
    let finished = compare(&[CONVERSATION, "--out", &first]);
    assert!(matches!(finished.code, Some(0 | 3)), "{}", finished.stderr);
    for part in ["| conversation-300 | load 0.55 |", "turns/min", "The gate "] {
        assert!(finished.stdout.contains(part), "{}", finished.stdout);
    }
    compare(&[CONVERSATION, "--out", &second]);
    let written = |folder: &str, file: &str| fs::read_to_string(PathBuf::from(folder).join(file));
    for file in ["comparison.md", "comparison.json", "comparison.svg"] {
        let content = written(&first, file).unwrap();
        assert_eq!(content, written(&second, file).unwrap(), "{file}");
    }
    assert_eq!(
        written(&first, "comparison.md").unwrap(),
        finished.stdout,
        "the file has what is printed"
    );
    let drawing = written(&first, "comparison.svg").unwrap();
    assert!(drawing.starts_with("<svg "));
}

#[test]
fn a_trace_that_cannot_be_used_ends_with_78_and_a_bad_flag_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.jsonl");
    fs::write(&broken, "no trace\n").unwrap();
    let broken = broken.to_str().unwrap();
    let finished = compare(&[CONVERSATION, broken]);
    assert_eq!(finished.code, Some(78), "{}", finished.stderr);
    let expected = format!("warmroute compare: {broken}: line 1 is no JSON object");
    assert!(
        finished.stderr.starts_with(&expected),
        "{}",
        finished.stderr
    );
    let cases: [(&[&str], &str); 3] = [
        (&[], "required arguments"),
        (
            &[CONVERSATION, "--out", "table.pdf"],
            "and .pdf is none of them",
        ),
        (&[CONVERSATION, "--ttft-slo-ms", "0"], "0 is not in 1..="),
    ];
    for (flags, expected) in cases {
        let finished = compare(flags);
        assert_eq!(finished.code, Some(2), "{flags:?}");
        assert!(finished.stderr.contains(expected), "{}", finished.stderr);
    }
}
