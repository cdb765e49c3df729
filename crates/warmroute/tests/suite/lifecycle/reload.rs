//! The configuration changes while the router runs.

use std::{os::unix::fs::OpenOptionsExt as _, time::Duration};

use contract_id::contract;
use serde_json::{Value, json};

use super::{configured::ConfiguredFleet, load::RequestLoad};
use crate::harness::{RawClient, RouterQueries as _, assert_shape, chat, eventually};

fn two(urls: &[String], rest: &str) -> String {
    format!(
        "workers:\n  - {{name: a, url: \"{}\"}}\n  - {{name: b, url: \"{}\"}}\n{rest}",
        urls[0], urls[1]
    )
}

/// The flag of `open`.
const O_NONBLOCK: i32 = if cfg!(target_os = "linux") { 0o4000 } else { 4 };

/// The degraded parts in `/health`, and the metric of the configuration.
fn degraded(it: &ConfiguredFleet) -> (Value, f64) {
    let health = RawClient::get(&it.router.data(), "/health").json();
    (
        health["degraded"].clone(),
        it.router.metric("warmroute_degraded", "part=\"config\""),
    )
}

#[test]
#[contract("F68", "I10")]
fn a_changed_file_takes_effect_and_an_invalid_one_changes_nothing() {
    let it = ConfiguredFleet::start(2, |urls| two(urls, "routing: {policy: round_robin}\n"), &[]);
    it.until_ready(&["a", "b"]);
    let urls = it.urls();
    it.write(&two(&urls, "routing: {policy: least_loaded}\n"));
    eventually("the new policy", || {
        (it.in_force("/routing/policy") == "least_loaded").then_some(())
    });
    for broken in [
        "routing: {polcy: random}\n",
        "routing: {policy: sideways}\n",
        "routing: [",
        "retry: {max_attempts: 0}\n",
    ] {
        let rejected = it
            .router
            .metric("warmroute_config_reloads_total", "rejected");
        it.write(&two(&urls, broken));
        eventually("the file to be refused", || {
            (it.router
                .metric("warmroute_config_reloads_total", "rejected")
                > rejected)
                .then_some(())
        });
        assert_eq!(it.in_force("/routing/policy"), "least_loaded", "{broken}");
        assert_eq!(degraded(&it), (json!(["config"]), 1.0), "{broken}");
    }
    assert!(
        it.router.stderr().contains("routing.polcy"),
        "the log names the key"
    );
    std::fs::remove_file(it.path()).unwrap();
    eventually("the log to report it", || {
        it.router
            .stderr()
            .contains("configuration file is gone")
            .then_some(())
    });
    assert_eq!(it.in_force("/routing/policy"), "least_loaded");
    it.until_ready(&["a", "b"]);
    assert_eq!(
        degraded(&it),
        (json!(["config"]), 1.0),
        "the degradation is gone"
    );
    it.write(&two(&urls, "routing: {policy: random}\n"));
    eventually("the file that exists again", || {
        (it.in_force("/routing/policy") == "random").then_some(())
    });
    eventually("the router to recover", || {
        (degraded(&it) == (json!([]), 0.0)).then_some(())
    });
}

#[test]
#[contract("V43")]
fn a_reload_on_request_reports_changes_needed_restarts_and_problems() {
    // The router also checks the file once a second: the assertions below depend on the order of
    // the two only in the history.
    let it = ConfiguredFleet::start(2, |urls| two(urls, ""), &[]);
    let template = json!({"applied": "bool", "changed": ["string"], "restart_needed": ["string"], "problems": [{}]});
    let urls = it.urls();
    let changed = "routing: {policy: random}\nserver: {runtime_threads: 3}\n";
    it.write(&two(&urls, changed));
    let (status, result) = it.reload(true);
    assert_eq!((status, &result["applied"]), (200, &json!(false)));
    assert_shape(&result, &template);
    assert_eq!(result["restart_needed"], json!(["server.runtime_threads"]));
    let (status, result) = it.reload(false);
    assert_eq!((status, &result["applied"]), (200, &json!(true)));
    eventually("the policy", || {
        (it.in_force("/routing/policy") == "random").then_some(())
    });
    assert_eq!(
        it.in_force("/server/runtime_threads"),
        "auto",
        "a key that needs a restart is not reported as in force"
    );

    it.write(&two(
        &urls,
        "routing: {policy: random}\nretry: {max_atempts: 2}\n",
    ));
    let (status, result) = it.reload(false);
    assert_eq!((status, &result["applied"]), (400, &json!(false)));
    assert_shape(&result, &template);
    let problem = &result["problems"][0];
    assert_eq!(
        (&problem["path"], &problem["line"], &problem["nearest"]),
        (
            &json!("retry.max_atempts"),
            &json!(5),
            &json!("max_attempts")
        )
    );
    let refused = it.call("POST", "/admin/reload", b"{\"dryrun\": true}");
    assert_eq!(
        (refused.status, refused.error_code().as_str()),
        (400, "invalid_json")
    );
    assert_eq!(it.call("GET", "/admin/reload", b"").status, 405);

    it.write(&two(&urls, "routing: {policy: least_loaded}\n"));
    it.router.signal("HUP");
    eventually("the signal", || {
        (it.in_force("/routing/policy") == "least_loaded").then_some(())
    });
}

#[test]
fn a_hanging_file_delays_only_the_changes_that_wait_for_it() {
    let it = ConfiguredFleet::start(2, |urls| two(urls, "server: {runtime_threads: 2}\n"), &[]);
    it.until_ready(&["a", "b"]);
    // A pipe without a writer: opening it blocks.
    let pipe = it.folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo")
        .arg(&pipe)
        .status()
        .expect("mkfifo is there");
    assert!(made.success());
    std::fs::rename(&pipe, it.path()).unwrap();
    let send_change = |(method, path): (&str, &str)| {
        let mut client = RawClient::connect(&it.router.admin());
        client.send(method, path, &[], b"");
        client
    };
    let changes = [
        ("POST", "/admin/reload"),
        ("DELETE", "/admin/workers/b"),
        ("GET", "/admin/config/history"),
    ];
    let reload = send_change(changes[0]);
    // A pipe with a reader opens for writing without blocking. Nothing is written.
    let _writer = eventually("the file to be read", || {
        let mut options = std::fs::OpenOptions::new();
        options
            .write(true)
            .custom_flags(O_NONBLOCK)
            .open(it.path())
            .ok()
    });
    let waiting: Vec<RawClient> = changes
        .into_iter()
        .cycle()
        .skip(1)
        .take(8)
        .map(send_change)
        .collect();
    std::thread::sleep(Duration::from_secs(2));
    for _ in 0..4 {
        let served = RawClient::chat(&it.router.data(), &chat("sim", "hi", 2)).reply();
        assert_eq!(served.status, 200, "{}", served.text());
    }
    assert_eq!(
        it.in_force("/server/runtime_threads"),
        2,
        "the configuration in force is readable"
    );
    assert_eq!(it.states().len(), 2, "nothing has changed yet");
    drop((reload, waiting));
}

#[test]
#[contract("V43")]
fn changes_are_recorded_and_an_earlier_configuration_can_be_restored() {
    let it = ConfiguredFleet::start(2, |urls| two(urls, "routing: {policy: random}\n"), &[]);
    let history = || {
        it.get("/admin/config/history")["history"]
            .as_array()
            .unwrap()
            .clone()
    };
    let template = json!({"id": "int", "at": "time", "source": "string", "result": "string", "changed": ["string"]});
    let urls = it.urls();
    for policy in ["least_loaded", "round_robin"] {
        it.write(&two(&urls, &format!("routing: {{policy: {policy}}}\n")));
        assert_eq!(it.reload(false).0, 200);
    }
    it.write(&two(&urls, "routing: {policy: no}\n"));
    assert_eq!(it.reload(false).0, 400);
    let entries = history();
    entries
        .iter()
        .for_each(|entry| assert_shape(entry, &template));
    let applied: Vec<&Value> = entries
        .iter()
        .filter(|it| it["changed"] == json!(["routing.policy"]))
        .collect();
    assert_eq!(applied.len(), 2, "{entries:?}");
    assert!(entries.iter().any(|entry| entry["result"] == "rejected"));
    assert_eq!(
        (
            &entries.last().unwrap()["id"],
            &entries.last().unwrap()["source"]
        ),
        (&json!(1), &json!("start"))
    );

    let reply = it.post("/admin/config/rollback", &json!({"id": 1}));
    assert_eq!(
        (reply.status, &reply.json()["applied"]),
        (200, &json!(true)),
        "{}",
        reply.text()
    );
    assert_eq!(it.in_force("/routing/policy"), "random");
    let unknown = it.post("/admin/config/rollback", &json!({"id": 999}));
    assert_eq!(
        (unknown.status, unknown.error_code().as_str()),
        (400, "invalid_request")
    );
}

#[test]
#[contract("F69")]
fn a_worker_removed_by_a_reload_first_finishes_its_streams() {
    let slow = |urls: &[String]| two(urls, "routing: {policy: round_robin}\n");
    let it = ConfiguredFleet::start(2, slow, &[]);
    it.until_ready(&["a", "b"]);
    let urls = it.urls();
    let body = crate::harness::streamed(crate::harness::chat("sim", "hi", 2000));
    let mut streams: Vec<_> = (0..2)
        .map(|_| crate::harness::RawClient::chat(&it.router.data(), &body))
        .collect();
    let begun: Vec<_> = streams
        .iter_mut()
        .map(|stream| stream.read_until("content"))
        .collect();
    it.write(&format!("workers: [{{name: a, url: \"{}\"}}]\n", urls[0]));
    assert_eq!(it.reload(false).0, 200);
    assert!(
        it.states()
            .contains(&("b".to_owned(), "draining".to_owned())),
        "{:?}",
        it.states()
    );
    for (stream, begun) in streams.iter_mut().zip(begun) {
        let reply = stream.body(begun);
        assert!(reply.clean && reply.text().contains("[DONE]"));
    }
    it.until_ready(&["a"]);
    it.router.wait_until_idle();
}

#[test]
#[contract("G14")]
#[contract("F70")]
fn a_thousand_reloads_half_of_them_invalid_cost_no_request_and_the_last_valid_one_is_in_force() {
    let it = ConfiguredFleet::start(3, |urls| two(urls, ""), &[]);
    it.until_ready(&["a", "b"]);
    let (urls, before) = (it.urls(), it.router.resident());
    let load = RequestLoad::start(&it.router.data(), 4, Duration::from_millis(40));
    let mut draw = ConfigGenerator(7);
    let (mut in_force, mut last_valid) = (Value::Null, String::new());
    for number in 0..1000 {
        let (text, policy) = draw.configuration(&urls);
        it.write(&text);
        let (status, result) = it.reload(false);
        match policy {
            Some(policy) => {
                assert_eq!(
                    (status, &result["problems"]),
                    (200, &json!([])),
                    "reload {number}: {result} of\n{text}"
                );
                (in_force, last_valid) = (json!(policy), text);
            }
            None => assert_eq!(status, 400, "reload {number}: {result} of\n{text}"),
        }
        if number % 20 == 0 && !in_force.is_null() {
            assert_eq!(it.in_force("/routing/policy"), in_force, "reload {number}");
        }
    }
    assert_eq!(
        it.in_force("/routing/policy"),
        in_force,
        "after the last reload"
    );
    // The whole configuration is in force, not only its policy: applying it again changes nothing.
    it.write(&last_valid);
    let (status, result) = it.reload(true);
    assert_eq!(
        (status, &result["changed"], &result["restart_needed"]),
        (200, &json!([]), &json!([])),
        "{result}"
    );
    let requests = load.end_without_failure();
    eprintln!(
        "1000 reloads, {requests} requests, resident {before} -> {} bytes",
        it.router.resident()
    );
    let history = it.get("/admin/config/history");
    assert_eq!(
        history["history"].as_array().unwrap().len(),
        100,
        "the history is bounded"
    );
    it.router.wait_until_idle();
}

#[test]
#[contract("G14")]
fn a_reload_that_replaces_every_worker_of_a_model_costs_no_request() {
    let only = |name: &str, url: &str| format!("workers: [{{name: {name}, url: \"{url}\"}}]\n");
    let it = ConfiguredFleet::start(2, |urls| only("a", &urls[0]), &[]);
    it.until_ready(&["a"]);
    let urls = it.urls();
    let load = RequestLoad::start(&it.router.data(), 4, Duration::from_millis(20));
    for round in 0..6 {
        let (name, url) = if round % 2 == 0 {
            ("b", &urls[1])
        } else {
            ("a", &urls[0])
        };
        it.write(&only(name, url));
        assert_eq!(it.reload(false).0, 200);
        it.until_ready(&[name]);
        let requests = load.requests();
        eventually("requests to go on", || {
            (load.requests() > requests + 20).then_some(())
        });
    }
    // Each reload follows before the previous worker was checked.
    for round in 0..6 {
        let (name, url) = if round % 2 == 0 {
            ("b", &urls[1])
        } else {
            ("a", &urls[0])
        };
        it.write(&only(name, url));
        assert_eq!(it.reload(false).0, 200);
    }
    it.until_ready(&["a"]);
    let requests = load.end_without_failure();
    eprintln!("{requests} requests over 12 replacements of the only worker");
    it.router.wait_until_idle();
}

/// Draws configurations.
struct ConfigGenerator(u64);

impl ConfigGenerator {
    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        choices[(self.0 >> 33) as usize % choices.len()]
    }

    /// A configuration and its policy; without a policy it is invalid. Worker `a` is in all of
    /// them; `b` and `c` vary.
    fn configuration(&mut self, urls: &[String]) -> (String, Option<&'static str>) {
        let mut text = String::from("workers:\n");
        let mut worker = |draw: &mut Self, name: &str, url: &str| {
            let weight = draw.one_of(&["1.0", "2.5", "0.5"]);
            let more = draw.one_of(&[
                "",
                ", block_size: 32",
                ", allow_tiers: [device]",
                ", type: vllm",
            ]);
            text += &format!("  - {{name: {name}, url: \"{url}\", weight: {weight}{more}}}\n");
        };
        worker(self, "a", &urls[0]);
        for (name, url) in [("b", &urls[1]), ("c", &urls[2])] {
            if self.one_of(&[true, true, false]) {
                worker(self, name, url);
            }
        }
        let policy = self.one_of(&[
            "warm",
            "random",
            "round_robin",
            "least_loaded",
            "kv_aware",
            "prefix_hash",
        ]);
        let retry = self.one_of(&["{max_attempts: 2}", "{base_delay: 50ms}", "{jitter: false}"]);
        let queue = self.one_of(&["{wait: 20s}", "{enabled: false}", "{ageing: 0.5}"]);
        let health = self.one_of(&[
            "{interval: 5s}",
            "{timeout: 5s}",
            "{unhealthy_threshold: 4}",
        ]);
        let broken = self.one_of(&[
            "routing: {policy: none}\n",
            "retry: {max_attempts: -1}\n",
            "workers: [{name: a}]\n",
            "nonsense: 1\n",
            "queue: {wait: [}\n",
        ]);
        if self.one_of(&[true, false]) {
            return (format!("{text}{broken}"), None);
        }
        text += &format!(
            "routing: {{policy: {policy}}}\nretry: {retry}\nqueue: {queue}\nhealth_checks: {health}\n"
        );
        (text, Some(policy))
    }
}
