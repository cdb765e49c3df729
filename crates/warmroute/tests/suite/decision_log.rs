//! The decision log of the real program, and `warmroute replay` on it.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    FinishedProgram, Program, RawClient, RoutedFleet, RouterQueries, chat, chat_message,
    eventually, streamed, words,
};

/// A fleet that logs into the folder of its configuration, under a name that is not known in
/// advance.
fn logged(folder: &Path, more: &str) -> (RoutedFleet, String) {
    let path = folder.join("decisions.jsonl").display().to_string();
    let routed = RoutedFleet::with(
        &[&[], &[]],
        &format!("decision_log: {{path: \"{path}\", {more}}}\n"),
        &[],
    );
    (routed, path)
}

fn lines(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("the log exists");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON lines"))
        .collect()
}

fn chats(routed: &RoutedFleet, count: usize) -> Vec<String> {
    let chat = |n: usize| {
        let messages = [
            chat_message("system", &words("confidential", 60)),
            chat_message("user", &format!("question {n}")),
        ];
        routed.chat(&messages, &[]).decision
    };
    (0..count).map(chat).collect()
}

fn replay(log: &str, config: &str, flags: &[&str]) -> FinishedProgram {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("other.yaml");
    fs::write(&file, config).expect("it can be written");
    let file = file.display().to_string();
    Program::finish(&[&["replay", "--decisions", log, "--config", &file], flags].concat())
}

const THREE_WORKERS: &str = "routing: {policy: least_loaded}\nworkers: [\"http://127.0.0.1:1\", \"http://127.0.0.1:2\", \
                             \"http://127.0.0.1:3\"]\n";

#[test]
#[contract("V43")]
fn every_finished_request_is_a_line_with_its_receipt_and_no_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let (routed, path) = logged(folder.path(), "interval: 10ms, chains: true");
    let ids = chats(&routed, 3);
    let lines = eventually("the log to be written", || {
        let lines = lines(&path);
        (lines.len() == 3).then_some(lines)
    });
    assert_eq!(
        fs::metadata(&path).expect("a file").permissions().mode() & 0o777,
        0o600
    );
    assert!(
        !fs::read_to_string(&path)
            .expect("text")
            .contains("confidential"),
        "no text"
    );
    for (line, id) in lines.iter().zip(&ids) {
        assert_eq!(line["id"], **id);
        let mut receipt =
            RawClient::get(&routed.router.admin(), &format!("/admin/decisions/{id}")).json();
        let chain = line["chain"].as_array().expect("a chain").clone();
        assert_eq!(json!(chain.len()), receipt["prompt"]["blocks"]);
        assert!(
            chain
                .iter()
                .all(|hash| hash.as_str().is_some_and(|hash| hash.len() == 16))
        );
        receipt["chain"] = json!(chain);
        assert_eq!(*line, receipt, "the receipt, settled");
    }
    assert_eq!(
        lines[0]["chain"][0], lines[1]["chain"][0],
        "they begin alike"
    );
    assert_eq!(
        routed
            .router
            .metric("warmroute_decision_log_written_total", ""),
        3.0
    );
    assert_eq!(
        routed
            .router
            .metric("warmroute_decision_log_lost_total", ""),
        0.0
    );

    let replayed = replay(&path, THREE_WORKERS, &["--json"]);
    assert_eq!(replayed.code, Some(0), "{}", replayed.stderr);
    let report: Value = serde_json::from_str(&replayed.stdout).expect("one JSON object");
    assert_eq!(
        (&report["schema"], &report["trace"]["requests"]),
        (&json!("warmroute.simulation/1"), &json!(3))
    );
    let cells = report["cells"].as_array().expect("cells");
    assert_eq!(
        (cells.len(), &cells[0]["policy"], &cells[0]["workers"]),
        (1, &json!("least_loaded"), &json!(3))
    );
    assert_eq!(
        (&cells[0]["finished"], &cells[0]["unfinished"]),
        (&json!(3), &json!(0))
    );
    assert_eq!(
        (
            &report["recorded"]["requests"],
            &report["recorded"]["skipped"]
        ),
        (&json!(3), &json!(0))
    );
    assert!(
        report["recorded"]["token_hit_ratio"].as_f64() > Some(0.0),
        "{report}"
    );
    let table = replay(&path, THREE_WORKERS, &[]);
    assert!(
        table.stdout.contains("as recorded") && table.stdout.contains("least_loaded"),
        "{}",
        table.stdout
    );
    assert_eq!(
        replay(&path, THREE_WORKERS, &["--json"]).stdout,
        replayed.stdout,
        "the same bytes"
    );
}

#[test]
#[contract("V43")]
fn request_text_is_in_the_log_only_where_configured_and_nowhere_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let (routed, path) = logged(folder.path(), "interval: 10ms, include_request_text: true");
    let id = chats(&routed, 1).remove(0);
    routed.completion(json!({"prompt": "once upon a time"}), &[]);
    let lines = eventually("the log to be written", || {
        let lines = lines(&path);
        (lines.len() == 2).then_some(lines)
    });
    let text = lines[0]["request_text"].as_str().expect("text");
    assert!(
        text.starts_with("system\nconfidential0 ") && text.ends_with("\nuser\nquestion 0\n"),
        "{text}"
    );
    assert_eq!(lines[1]["request_text"], "once upon a time");
    let receipt = RawClient::get(&routed.router.admin(), &format!("/admin/decisions/{id}"));
    assert!(
        !receipt.text().contains("confidential") && receipt.json().get("request_text").is_none()
    );
    assert!(!routed.router.stderr().contains("confidential"));
    let replayed = replay(&path, THREE_WORKERS, &["--json"]);
    assert!(!replayed.stdout.contains("confidential") && !replayed.stderr.contains("confidential"));
}

#[test]
#[contract("V43")]
fn pending_lines_are_written_at_exit_and_a_log_without_chains_cannot_be_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (routed, path) = logged(folder.path(), "interval: 1h");
    let ids = chats(&routed, 2);
    let RoutedFleet {
        router,
        engines: _engines,
        ..
    } = routed;
    router.signal("TERM");
    assert_eq!(router.wait().code, Some(0));
    let lines = lines(&path);
    assert_eq!(
        json!(lines.iter().map(|line| &line["id"]).collect::<Vec<_>>()),
        json!(ids)
    );
    assert!(
        lines
            .iter()
            .all(|line| line.get("chain").is_none() && line["outcome"]["kind"] == "ok")
    );

    let refused = replay(&path, THREE_WORKERS, &["--json"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(78), ""));
    assert!(
        refused.stderr.contains("decisions.log.chains: true"),
        "{}",
        refused.stderr
    );
    let nobody = replay(&path, "workers: []\n", &[]);
    assert!(
        nobody.code == Some(78) && nobody.stderr.contains("0 workers"),
        "{}",
        nobody.stderr
    );
    assert_eq!(replay("/no/such/file", THREE_WORKERS, &[]).code, Some(78));
    assert_eq!(
        replay(&path, "routing: {polcy: warm}\n", &[]).code,
        Some(78)
    );
}

#[test]
#[contract("V43", "F66")]
fn an_unwritable_log_is_reported_once_and_counted_and_affects_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let (routed, path) = logged(&folder.path().join("not there"), "interval: 10ms");
    chats(&routed, 2);
    let lost = || {
        routed.router.metric(
            "warmroute_decision_log_lost_total",
            "reason=\"write_failed\"",
        )
    };
    eventually("the loss to be counted", || (lost() >= 2.0).then_some(()));
    assert!(
        routed
            .router
            .metric("warmroute_sink_errors_total", "sink=\"decision_log\"")
            >= 2.0
    );
    let warnings = routed
        .router
        .stderr()
        .lines()
        .filter(|line| line.contains("decision log cannot be written"))
        .count();
    assert_eq!(warnings, 1);
    fs::create_dir(folder.path().join("not there")).expect("it can be made");
    let id = chats(&routed, 1).remove(0);
    eventually("the log to be written after all", || {
        let text = fs::read_to_string(&path).ok()?;
        text.lines().any(|line| line.contains(&id)).then_some(())
    });
}

/// Streams prompts of many lengths, up to four at a time; returns their number.
fn streamed_prompts(routed: &RoutedFleet) -> usize {
    let mut sent = 0;
    for round in 0..30 {
        let clients: Vec<RawClient> = (0..1 + round % 4)
            .map(|number| {
                let text = words(&format!("r{round}n{number}w"), 20 + (round * 37) % 150);
                let mut body = streamed(chat("sim", &text, 10));
                body["stream_options"] = json!({"include_usage": true});
                RawClient::chat(&routed.router.data(), &body)
            })
            .collect();
        sent += clients.len();
        for mut client in clients {
            assert_eq!(client.reply().status, 200);
        }
    }
    sent
}

#[test]
#[contract("V43")]
fn a_log_gives_the_simulator_the_speed_of_the_engines() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("decisions.jsonl").display().to_string();
    let engine = [
        "--speed",
        "1",
        "--prefill-tps",
        "4000",
        "--itl-ms",
        "10",
        "--overhead-ms",
        "5",
    ];
    let config = format!("decision_log: {{path: \"{path}\", interval: 10ms}}\n");
    let routed = RoutedFleet::with(&[&engine, &engine], &config, &["--policy", "round_robin"]);
    let fit = || {
        let trace = [
            "simulate",
            "--trace",
            "synthetic:chat?sessions=20",
            "--workers",
            "2",
            "--fit",
            &path,
        ];
        Program::finish(&[&trace[..], &["--json"]].concat())
    };
    let sent = streamed_prompts(&routed);
    let written = eventually("the log to be written", || {
        Some(lines(&path)).filter(|lines| lines.len() == sent)
    });
    assert!(written.iter().all(|line| line["outcome"]["kind"] == "ok"));

    let fitted = fit();
    assert_eq!(fitted.code, Some(0), "{}", fitted.stderr);
    let report: Value = serde_json::from_str(&fitted.stdout).expect("one JSON object");
    assert_eq!(
        (&report["profile"], &report["fit"]["requests"]),
        (&json!("fitted"), &json!(sent))
    );
    let found = |name: &str| report["fit"][name].as_f64().expect("a number");
    let prompt_ms = found("overhead_ms")
        + found("step_ms")
        + 600.0 * found("prefill_ms")
        + 36e4 * found("attention_ms");
    // 5 ms, 10 ms and 150 ms are the minimum; the rest depends on this machine.
    assert!(prompt_ms > 0.95 * 165.0, "{}", report["fit"]);

    let few: Vec<String> = written.iter().take(10).map(Value::to_string).collect();
    fs::write(&path, few.join("\n")).expect("it can be written");
    let refused = fit();
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(78), ""));
    assert!(
        refused.stderr.contains("expected at least 20"),
        "{}",
        refused.stderr
    );
}
