//! Workers that contradict each other.

use contract_id::contract;

use super::{
    look::{doctor, endpoint_of, engine, look_with_file},
    tokens::tiny_qwen,
};
use crate::harness::Program;

#[test]
#[contract("G28")]
fn one_engine_is_two_workers() {
    let engine = engine(&[]);
    let fix = "leave out workers[1]: both are the engine at {url}";
    let (here, named) = (engine.url(), engine.url().replace("127.0.0.1", "localhost"));
    for second in [&here, &named] {
        let (one, two) = (format!("w1={here}"), format!("w2={second}"));
        let seen = doctor(&["-w", &one, "-w", &two]);
        let found = seen.fixes(&["w1", "w2"], "identity_unique", fix);
        // Each check names the other worker's address as that one is configured.
        assert_eq!(
            found,
            [fix.replace("{url}", second), fix.replace("{url}", &here)]
        );
    }
}

#[test]
#[contract("G28")]
fn one_publisher_is_followed_for_two_workers() {
    // Neither engine announces a publisher, and both entries have the same endpoint.
    let flags = ["--without", "/kv_event_sources"];
    let (one, two) = (engine(&flags), engine(&flags));
    let endpoints = format!(
        "kv_events: {{endpoint: \"{}\", replay_endpoint: \"{}\"}}",
        endpoint_of(&one, "kv_events"),
        endpoint_of(&one, "replay")
    );
    let entry = |name: &str, engine: &Program| {
        format!(
            "  - {{name: {name}, url: \"{}\", {endpoints}}}\n",
            engine.url()
        )
    };
    let seen = look_with_file(&format!(
        "workers:\n{}{}",
        entry("w1", &one),
        entry("w2", &two)
    ));
    let fix = "set workers[{at}].kv_events.endpoint to the publisher of {url}, or leave one of the two out";
    let found = seen.fixes(&["w1", "w2"], "identity_unique", fix);
    let printed =
        |at: usize, url: String| fix.replace("{at}", &at.to_string()).replace("{url}", &url);
    assert_eq!(found, [printed(0, one.url()), printed(1, two.url())]);
}

#[test]
#[contract("G28")]
fn two_models_are_served_under_one_name() {
    let (one, two) = (engine(&[]), engine(&["--tokenizer", &tiny_qwen()]));
    let (first, second) = (format!("w1={}", one.url()), format!("w2={}", two.url()));
    let fix = "start both with the same model, or serve one of them as another name than {model} (--served-model-name)";
    let seen = doctor(&["-w", &first, "-w", &second]);
    seen.fails(&["w1", "w2"], "model_agrees", fix, &[("model", "sim")]);
}

#[test]
fn workers_of_different_models_and_block_sizes_pass_side_by_side() {
    let (one, two) = (
        engine(&["--model", "a"]),
        engine(&["--model", "b", "--block-size", "64"]),
    );
    let (first, second) = (format!("w1={}", one.url()), format!("w2={}", two.url()));
    let seen = doctor(&["-w", &first, "-w", &second]).green();
    assert_eq!(seen.check("w1", "block_size")["found"], "16");
    assert_eq!(seen.check("w2", "block_size")["found"], "64");
    assert_eq!(seen.check("w2", "model_agrees")["status"], "skip");
}
