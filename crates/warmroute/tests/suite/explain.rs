//! `warmroute explain` queries a running router for the target of a request, or for the reasons of
//! a past decision.

use serde_json::{Value, json};

use crate::harness::{
    self, FinishedProgram, Program, RawClient, RoutedFleet, RouterQueries, chat_message, words,
};

fn explain(router: &Program, args: &[&str]) -> FinishedProgram {
    Program::finish(&[&["explain", "--url", &router.admin()], args].concat())
}

fn receipt(end: &FinishedProgram) -> Value {
    assert_eq!((end.code, end.stderr.as_str()), (Some(0), ""), "{end:?}");
    serde_json::from_str(&end.stdout).expect("stdout is one JSON object")
}

#[test]
fn a_prompt_a_request_and_a_decision_are_explained() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    let messages = [chat_message("user", &words("why", 60))];
    let turn = routed.chat(&messages, &[]);
    let receipts = routed.router.receipts().len();

    let file = routed.path("request.json");
    // Engines accept a `request_id`; `explain` reserves nothing for it.
    let body = json!({"messages": messages, "max_tokens": 9, "request_id": "r1"});
    std::fs::write(&file, body.to_string()).expect("a file can be written");
    let explained = explain(
        &routed.router,
        &["--request", &file.display().to_string(), "--json"],
    );
    let dry = receipt(&explained);
    assert_eq!(
        (&dry["schema"], &dry["dry_run"]),
        (&json!("warmroute.receipt/1"), &json!(true))
    );
    assert_eq!(dry["winner"]["worker"], *turn.worker, "that worker is warm");
    assert_eq!(dry["prompt"]["tokens"], turn.prompt_tokens);

    let past = receipt(&explain(
        &routed.router,
        &["--decision", &turn.decision, "--json"],
    ));
    assert_eq!(past, routed.receipt(&turn));

    let prompt = receipt(&explain(
        &routed.router,
        &["--prompt", "hello", "--model", "sim", "--json"],
    ));
    assert_eq!(
        (&prompt["model"], &prompt["dry_run"]),
        (&json!("sim"), &json!(true))
    );
    assert_eq!(
        routed.router.receipts().len(),
        receipts,
        "explaining is no request"
    );
}

#[test]
fn the_table_lists_all_workers_with_tiers_load_cost_and_reasons() {
    let routed = RoutedFleet::with(&[&[], &[]], "", &["--router-mode", "kv"]);
    let turn = routed.chat(&[chat_message("user", &words("table", 60))], &[]);
    let held = json!({"model": "sim", "prompt": words("held", 40), "worker": turn.worker, "request_id": "r1"});
    RawClient::post(
        &routed.router.data(),
        "/v1/route",
        held.to_string().as_bytes(),
    );
    let file = routed.path("pinned.json");
    let pinned = json!({"prompt": words("held", 40), "worker": turn.worker});
    std::fs::write(&file, pinned.to_string()).expect("a file can be written");
    let shown = explain(&routed.router, &["--request", &file.display().to_string()]);
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""));
    let other = if turn.worker == "a" { "b" } else { "a" };
    for expected in [
        "dry run, nothing was sent".to_owned(),
        "model     sim, policy dynamo_cost, method pinned".to_owned(),
        "cost (blocks)".to_owned(),
        format!("{}/0: prefill_blocks", turn.worker),
        format!("winner    {}/0: cost ", turn.worker),
        format!("excluded  {other}/0: not_pinned"),
        "rewritten nothing".to_owned(),
    ] {
        assert!(
            shown.stdout.contains(&expected),
            "no {expected:?} in\n{}",
            shown.stdout
        );
    }
    let past = explain(&routed.router, &["--decision", &turn.decision]);
    assert!(
        past.stdout.contains("outcome   ok (status 200)") && past.stdout.contains("runner-up"),
        "{}",
        past.stdout
    );
}

#[test]
fn a_query_that_the_router_does_not_answer_ends_with_1() {
    let routed = RoutedFleet::start(&[&[], &["--model", "other"]]);
    for (args, message) in [
        (
            ["--decision", "00000000000000aa"].as_slice(),
            "decision_not_found",
        ),
        (&["--prompt", "a", "--model", "nope"], "model_not_found"),
    ] {
        let end = explain(&routed.router, args);
        assert_eq!((end.code, end.stdout.as_str()), (Some(1), ""), "{end:?}");
        assert!(end.stderr.contains(message), "{}", end.stderr);
    }
    // The data listener does not have these routes.
    let wrong = Program::finish(&[
        "explain",
        "--url",
        &routed.router.url(),
        "--decision",
        "00000000000000aa",
    ]);
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    let nobody = Program::finish(&["explain", "--url", "http://127.0.0.1:1", "--prompt", "a"]);
    assert_eq!(nobody.code, Some(1));
    assert!(
        nobody.stderr.contains("cannot be reached"),
        "{}",
        nobody.stderr
    );
}

#[test]
fn an_invalid_query_ends_with_2() {
    let routed = RoutedFleet::start(&[&[], &["--model", "other"]]);
    let strange = routed.path("strange.json").display().to_string();
    std::fs::write(&strange, r#"{"prompt": {}, "model": "sim"}"#).expect("a file can be written");
    let nobody = routed.path("nobody.json").display().to_string();
    std::fs::write(
        &nobody,
        r#"{"prompt": "a", "model": "sim", "worker": "w9"}"#,
    )
    .expect("a file can be written");
    let missing = routed.path("missing.json").display().to_string();
    let list = routed.path("list.json").display().to_string();
    std::fs::write(&list, "[1]").expect("a file can be written");
    for (args, message) in [
        ([].as_slice(), "--prompt"),
        (
            &["--prompt", "a", "--decision", "00000000000000aa"],
            "--decision",
        ),
        (&["--decision", "../workers"], "16 lower-case hex digits"),
        (&["--request", &missing], "missing.json"),
        (&["--request", &list], "no JSON object"),
        (&["--prompt", "a"], "--model"),
        (&["--request", &strange], "invalid_request"),
        (&["--request", &nobody], "unknown_worker"),
    ] {
        let end = explain(&routed.router, args);
        assert_eq!((end.code, end.stdout.as_str()), (Some(2), ""), "{end:?}");
        assert!(end.stderr.contains(message), "{args:?}: {}", end.stderr);
    }
    assert_eq!(
        Program::finish(&["explain", "--url", "ftp://h", "--prompt", "a"]).code,
        Some(2)
    );
}

#[test]
fn the_address_may_be_given_as_the_ready_line_prints_it() {
    let engine = Program::engine(&[]);
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("admin.sock").display().to_string();
    let router = Program::serve(
        &[engine.url()],
        &["--admin-listen", &format!("unix:{socket}")],
    );
    assert_eq!(router.admin(), format!("unix:{socket}"));
    for url in [router.admin(), format!("unix://{socket}")] {
        let args = [
            "explain", "--url", &url, "--prompt", "a", "--model", "sim", "--json",
        ];
        let explained = harness::eventually("the worker to be ready", || {
            let end = Program::finish(&args);
            (end.code == Some(0)).then_some(end)
        });
        assert_eq!(receipt(&explained)["dry_run"], true);
    }
}

#[test]
fn the_token_of_a_listener_comes_from_a_file_or_the_environment() {
    let engine = Program::engine(&[]);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("token").display().to_string();
    std::fs::write(&file, "0123456789abcdef\n").expect("a file can be written");
    let router = Program::serve(&[engine.url()], &["--admin-token-file", &file]);
    let url = router.admin();
    let args = [
        "explain", "--url", &url, "--prompt", "a", "--model", "sim", "--json",
    ];
    let without = Program::finish(&args);
    assert_eq!(without.code, Some(1));
    assert!(
        without.stderr.contains("missing_api_key"),
        "{}",
        without.stderr
    );
    let explained = harness::eventually("the worker to be ready", || {
        let end = Program::finish(&[&args[..], &["--admin-token-file", &file]].concat());
        (end.code == Some(0)).then_some(end)
    });
    assert_eq!(receipt(&explained)["dry_run"], true);
    let by_variable =
        Program::finish_with_env(&args, &[("WARMROUTE_ADMIN_TOKEN", "0123456789abcdef")]);
    assert_eq!(receipt(&by_variable)["dry_run"], true);
}
