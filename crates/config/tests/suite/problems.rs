//! Problems reported for an invalid configuration.

use contract_id::contract;

use crate::sources::{self, lines, load_all, only, problem, problems, settings};

#[test]
fn a_mistyped_key_is_named_with_its_place_and_the_nearest_known_one() {
    let problem = problem(
        "workers:\n  - name: w1\n    url: http://h:1\n  - name: w2\n    url: http://h:2\n    # two\n    wieght: 2\n",
    );
    assert_eq!(problem.path, "workers[1].wieght");
    assert_eq!((problem.line, problem.column), (Some(7), Some(5)));
    assert_eq!(problem.value, 2);
    assert_eq!(problem.message, "unknown key");
    assert_eq!(problem.nearest.as_deref(), Some("weight"));
    assert!(
        problem
            .expected
            .as_deref()
            .is_some_and(|expected| expected.starts_with("one of name, url, "))
    );
    let shown = problem.to_string();
    assert!(
        shown
            .starts_with("warmroute.yaml: line 7, column 5: workers[1].wieght: unknown key: expected one of name, url")
    );
    assert!(shown.ends_with("; did you mean `weight`?"));
    let json = serde_json::to_value(&problem).expect("a problem is JSON");
    for field in [
        "path", "line", "column", "value", "message", "expected", "nearest",
    ] {
        assert!(json.get(field).is_some(), "{field}");
    }
}

#[test]
fn all_problems_are_reported_at_once_in_the_order_of_the_file() {
    let text = "
server:
  listen: nowhere
  kep_alive: 5s
routing:
  policy: wram
  temperature: 11
retry: [1]
workers:
  - {name: a}
  - ftp://h:1
  - {url: \"http://h:1\", weight: 0, type: 5, role: prefil}
  - {url: \"http://h:1\"}
response_cache: {enabled: perhaps}
servr: {}
";
    let found = problems(text);
    let paths: Vec<_> = found
        .iter()
        .map(|problem| (problem.line.expect("a line"), problem.path.as_str()))
        .collect();
    assert_eq!(
        paths,
        [
            (3, "server.listen"),
            (4, "server.kep_alive"),
            (6, "routing.policy"),
            (7, "routing.temperature"),
            (8, "retry"),
            (10, "workers[0].url"),
            (11, "workers[1].url"),
            (12, "workers[2].weight"),
            (12, "workers[2].type"),
            (12, "workers[2].role"),
            (13, "workers[3].name"),
            (14, "response_cache.enabled"),
            (15, "servr"),
        ],
        "{}",
        lines(&found)
    );
    assert_eq!(found[2].nearest.as_deref(), Some("warm"));
    assert_eq!(found[12].nearest.as_deref(), Some("server"));
}

#[test]
fn a_value_out_of_range_or_of_another_type_is_reported_with_the_accepted_values() {
    for (text, path, expected) in [
        (
            "routing: {overlap_weight: 100.5}",
            "routing.overlap_weight",
            "a number from 0 to 100",
        ),
        (
            "routing: {overlap_weight: -1}",
            "routing.overlap_weight",
            "a number from 0 to 100",
        ),
        (
            "routing: {temperature: .nan}",
            "routing.temperature",
            "a number from 0 to 10",
        ),
        (
            "routing: {temperature: \"1\"}",
            "routing.temperature",
            "a number from 0 to 10",
        ),
        (
            "retry: {budget_ratio: 1.1}",
            "retry.budget_ratio",
            "a number from 0 to 1",
        ),
        (
            "kv_events: {default_port: 0}",
            "kv_events.default_port",
            "a whole number from 1 to 65535",
        ),
        (
            "kv_events: {default_port: 65536}",
            "kv_events.default_port",
            "a whole number from 1 to 65535",
        ),
        (
            "kv_events: {block_hash_seed: -1}",
            "kv_events.block_hash_seed",
            "a whole number of at least 0",
        ),
        (
            "kv_events: {enabled: yes}",
            "kv_events.enabled",
            "true or false",
        ),
        (
            "models: {defaults: {block_size: 65537}}",
            "models.defaults.block_size",
            "auto or a whole number from 1 to 65536",
        ),
        (
            "models: {defaults: {block_size: 0}}",
            "models.defaults.block_size",
            "auto or a whole number from 1 to 65536",
        ),
        (
            "server: {port: 70000}",
            "server.port",
            "auto or a whole number from 0 to 65535",
        ),
        (
            "health_checks: {interval: 0}",
            "health_checks.interval",
            "a duration of at least 10ms such as",
        ),
        (
            "health_checks: {interval: 5 minutes}",
            "health_checks.interval",
            "a duration",
        ),
        (
            "health_checks: {unhealthy_threshold: 1.5}",
            "health_checks.unhealthy_threshold",
            "a whole number",
        ),
        (
            "health_checks: {endpoint: health}",
            "health_checks.endpoint",
            "a path such as /health",
        ),
        (
            "server: {max_body_bytes: 1XB}",
            "server.max_body_bytes",
            "a size such as",
        ),
        (
            "server: {listen: example.com:80}",
            "server.listen",
            "an address such as",
        ),
        ("admin: {token_file: [a]}", "admin.token_file", "a path"),
        (
            "logging: {level: verbose}",
            "logging.level",
            "one of trace, debug, info, warn, error",
        ),
        ("logging: loud", "logging", "a mapping with level, format"),
        (
            "models: {entries: {m: {tokenizer: \"\"}}}",
            "models.entries.m.tokenizer",
            "auto, engine, none or a path",
        ),
        (
            "models: {entries: {a.b: 5}}",
            "models.entries[\"a.b\"]",
            "a mapping with tokenizer",
        ),
        ("workers: http://h:1", "workers", "a list"),
    ] {
        let problem = problem(text);
        assert_eq!(problem.path, path, "{text}: {problem}");
        assert!(
            problem
                .expected
                .as_deref()
                .unwrap_or_default()
                .starts_with(expected),
            "{text}: {problem}"
        );
        assert_eq!(problem.line, Some(1), "{text}");
    }
}

#[test]
fn per_model_settings_are_validated_like_the_defaults() {
    for (text, path, expected) in [
        (
            "routing: {models: {m: {polcy: warm}}}",
            "routing.models.m.polcy",
            "one of policy, prefill_policy",
        ),
        (
            "routing: {models: {m: {policy: best}}}",
            "routing.models.m.policy",
            "one of warm, kv_aware",
        ),
        (
            "routing: {models: {a.b*: {overlap_weight: 101}}}",
            "routing.models[\"a.b*\"].overlap_weight",
            "a number from 0",
        ),
        (
            "routing: {models: {m: {temperature: -1}}}",
            "routing.models.m.temperature",
            "a number from 0 to 10",
        ),
        (
            "routing: {models: {m: {busy_threshold: 2}}}",
            "routing.models.m.busy_threshold",
            "a number from 0 to 1",
        ),
        (
            "routing: {models: {m: warm}}",
            "routing.models.m",
            "a mapping with policy",
        ),
        (
            "routing: {models: [m]}",
            "routing.models",
            "a mapping from names",
        ),
        (
            "routing: {models: {\"q*n\": {policy: warm}}}",
            "routing.models.q*n",
            "a model's name, or how names begin",
        ),
        (
            "routing: {models: {\"**\": {policy: warm}}}",
            "routing.models.**",
            "a model's name, or how names begin",
        ),
        (
            "routing: {models: {\"\": {policy: warm}}}",
            "routing.models.",
            "a model's name, or how names begin",
        ),
    ] {
        let problem = problem(text);
        assert_eq!(problem.path, path, "{text}: {problem}");
        assert!(
            problem
                .expected
                .as_deref()
                .unwrap_or_default()
                .starts_with(expected),
            "{text}: {problem}"
        );
        assert_eq!(problem.line, Some(1), "{text}");
    }
    assert_eq!(
        problem("routing: {models: {m: {polcy: warm}}}")
            .nearest
            .as_deref(),
        Some("policy")
    );
}

#[test]
#[contract("V44")]
fn invalid_clusters_are_rejected() {
    let one = "workers: [alpha=http://h:1]\nrouting:\n  semantic_clusters:\n    enabled: true\n";
    let problems = load_all(one, &[], &[]).unwrap_err();
    let paths: Vec<_> = problems
        .iter()
        .map(|problem| problem.path.as_str())
        .collect();
    assert_eq!(
        paths,
        [
            "routing.semantic_clusters.embedding_model",
            "routing.semantic_clusters.clusters"
        ]
    );
    let cluster =
        |entry: &str| format!("{one}    embedding_model: e\n    clusters: [{{{entry}}}]\n");
    let path = "routing.semantic_clusters.clusters[0].";
    for (entry, key, message) in [
        ("examples: [x], workers: [alpha]", "name", "missing"),
        ("name: c, workers: [alpha]", "examples", "missing"),
        ("name: c, examples: [x]", "workers", "missing"),
        (
            "name: c, examples: [x], workers: [alpah]",
            "workers[0]",
            "no worker is called `alpah`",
        ),
        (
            "name: c, example: [x], workers: [alpha]",
            "example",
            "unknown key",
        ),
    ] {
        let problems = load_all(&cluster(entry), &[], &[]).unwrap_err();
        let found = problems
            .iter()
            .find(|problem| problem.path == format!("{path}{key}"));
        assert_eq!(
            found.map(|problem| problem.message.as_str()),
            Some(message),
            "{entry}: {problems:?}"
        );
    }
    let twice = cluster(
        "name: c, examples: [x], workers: [alpha]}, {name: c, examples: [y], workers: [alpha]",
    );
    assert_eq!(
        load_all(&twice, &[], &[]).unwrap_err()[0].message,
        "a second cluster `c`"
    );
}

#[test]
fn a_problem_below_an_alias_has_the_path_of_the_section() {
    assert_eq!(
        problem("api_keys: [{name: a, key: k, enabled: maybe}]\n").path,
        "tenants.api_keys[0].enabled"
    );
    assert_eq!(
        problem("decision_log: {include_request_text: maybe}\n").path,
        "decisions.log.include_request_text"
    );
}

#[test]
fn a_key_of_a_later_version_accepts_only_its_default() {
    sources::settings("server: {memory_budget: ~}\n");
    sources::settings(
        "circuit_breaker: {sweep: 10s}\nmetrics: {exemplars: true}\nadmin: {dashboard: true}\n",
    );
    for (text, path) in [
        ("admin: {dashboard: false}", "admin.dashboard"),
        (
            "kv_events: {max_events_per_second: 1000}",
            "kv_events.max_events_per_second",
        ),
        ("circuit_breaker: {sweep: 1s}", "circuit_breaker.sweep"),
        ("metrics: {exemplars: false}", "metrics.exemplars"),
        ("compat: {metrics: []}", "compat.metrics"),
    ] {
        let problem = problem(text);
        assert_eq!(problem.path, path);
        assert!(
            problem
                .message
                .ends_with("is not built yet in this version"),
            "{problem}"
        );
    }
}

#[test]
fn a_value_of_a_later_version_is_rejected_with_the_supported_ones() {
    let problem = problem("kv_events: {block_hash: Keyed}\n");
    assert_eq!(
        problem.to_string(),
        "warmroute.yaml: line 1, column 25: kv_events.block_hash: `keyed` is not built yet in this version: expected one of \
         xxh3, fnv1a"
    );
    for (text, word) in [
        ("admin: {listen: same}", "same"),
        ("kv_events: {block_hash: keyed}", "keyed"),
    ] {
        let problem = sources::problem(text);
        assert_eq!(
            problem.message,
            format!("`{word}` is not built yet in this version"),
            "{problem}"
        );
    }
}

#[test]
fn an_unset_variable_is_named_without_the_values_of_others() {
    let env = [("SET", "hunter2")];
    let found = only(
        load_all("kv_events: {topic_filter: \"${SET}-${NOPE}\"}\n", &env, &[])
            .expect_err("NOPE is not set"),
    );
    assert_eq!(found.message, "the variable `NOPE` is not set");
    assert!(
        !serde_json::to_string(&found)
            .expect("JSON")
            .contains("hunter2")
    );
    assert_eq!(found.value, "${SET}-${NOPE}");
    for text in [
        "server: {keep_alive: \"${SET}\"}",
        "routing: {policy: \"${SET}\"}",
        "workers: [\"http://u:${SET}@h\"]",
    ] {
        let found = only(load_all(text, &env, &[]).expect_err("a value that does not fit"));
        let shown = format!("{found}{}", serde_json::to_string(&found).expect("JSON"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn unknown_and_unusable_variables_are_problems_named_after_the_variable() {
    let found =
        |name: &str, value: &str| only(load_all("", &[(name, value)], &[]).expect_err("a problem"));
    let unknown = found("WARMROUTE_ROUTING__POLCY", "warm");
    assert_eq!(unknown.source, "WARMROUTE_ROUTING__POLCY");
    assert_eq!(
        unknown.nearest.as_deref(),
        Some("WARMROUTE_ROUTING__POLICY")
    );
    assert_eq!(unknown.line, None);
    assert_eq!(found("WARMROUTE_NONSENSE_ALTOGETHER", "x").nearest, None);
    assert_eq!(
        found("WARMROUTE_ROUTING", "x").message,
        "a mapping cannot be set by a variable"
    );
    let wrong = found("WARMROUTE_SERVER__KEEP_ALIVE", "soon");
    assert!(
        wrong
            .to_string()
            .starts_with("WARMROUTE_SERVER__KEEP_ALIVE: server.keep_alive: cannot use `soon`: "),
        "{wrong}"
    );
}

#[test]
fn a_flag_with_a_wrong_value_is_a_problem_named_after_the_flag() {
    let found = |path: &str, value: &str| {
        only(load_all("", &[], &[(path, value, "--some")]).expect_err("a problem"))
    };
    let wrong = found("routing.policy", "wram");
    assert_eq!(
        (wrong.source.as_str(), wrong.nearest.as_deref()),
        ("--some", Some("warm"))
    );
    assert_eq!(found("workers[w9].weight", "1").message, "no worker `w9`");
    assert_eq!(found("routing.nope", "1").message, "no key `nope`");
    assert_eq!(found("routing..policy", "1").message, "not a path");
}

#[test]
#[contract("S9", "S81")]
fn secrets_are_in_no_problem_and_in_no_output() {
    let text = "workers:\n  - {url: \"http://h:1\", api_key: \"sk-${K}\"}\n  - {url: \"http://u:hunter2@h:2\"}\n  \
                - {url: \"http://h:3\", api_key: {a: hunter2}}\n  - {url: \"http://h:4\", apikey: hunter2}\n";
    let found = load_all(text, &[("K", "hunter2")], &[]).expect_err("three problems");
    assert_eq!(found.len(), 3, "{}", lines(&found));
    let all = format!(
        "{}{}",
        lines(&found),
        serde_json::to_string(&found).expect("JSON")
    );
    assert!(!all.contains("hunter2"), "{all}");

    let text = "workers: [{url: \"http://h:1\", api_key: \"sk-${K}\"}]";
    let settings = load_all(text, &[("K", "hunter2")], &[]).expect("nothing wrong");
    let all = format!("{settings:?}{}{}", settings.to_yaml(), settings.to_json());
    assert!(!all.contains("hunter2") && all.contains("***"), "{all}");
}

#[test]
fn a_public_listener_requires_authentication_or_insecure_open() {
    let open = problem("server: {listen: \"0.0.0.0:8080\"}");
    assert_eq!(open.path, "server.listen");
    assert!(open.to_string().contains("--insecure-open"), "{open}");
    assert_eq!(
        problem("server: {listen: \"[::]:8080\"}").path,
        "server.listen"
    );
    sources::settings("server: {listen: \"0.0.0.0:8080\", insecure_open: true}");
    sources::settings("server: {listen: \"127.0.0.9:8080\"}");

    let admin = problem("server: {insecure_open: true}\nadmin: {listen: \"0.0.0.0:9191\"}");
    assert_eq!(admin.path, "admin.listen");
    assert!(admin.to_string().contains("admin.token_file"), "{admin}");
    sources::settings("admin: {listen: \"0.0.0.0:9191\", token_file: /t}");
    sources::settings("admin: {listen: \"0.0.0.0:9191\", tokens: [{name: a, token_file: /t}]}");

    assert_eq!(
        problem("admin: {listen: \"127.0.0.1:8080\"}").message,
        "127.0.0.1:8080 is also `server.listen`"
    );
    sources::settings("server: {listen: \"127.0.0.1:0\"}\nadmin: {listen: \"127.0.0.1:0\"}");
}

#[test]
#[contract("V44")]
fn a_public_metrics_listener_requires_the_operators_token() {
    let open = problem("metrics: {listen: \"0.0.0.0:29000\"}");
    assert_eq!(open.path, "metrics.listen");
    assert!(open.to_string().contains("admin.token_file"), "{open}");
    sources::settings("metrics: {listen: \"0.0.0.0:29000\"}\nadmin: {token_file: /t}");
    for local in ["127.0.0.1:29000", "[::1]:29000", "unix:/run/m.sock"] {
        let settings = sources::settings(&format!("metrics: {{listen: \"{local}\"}}"));
        let listen = settings.metrics.listen.map(|listen| listen.to_string());
        assert_eq!(listen.as_deref(), Some(local));
    }
    assert_eq!(sources::settings("").metrics.listen, None);
}

#[test]
#[contract("V44")]
fn a_metrics_listener_without_metrics_is_a_warning() {
    let notices = |text: &str| -> Vec<String> {
        let settings = sources::settings(text);
        let keys = settings.ignored_keys().iter();
        keys.map(|key| format!("{}: {}", key.path, key.message))
            .collect()
    };
    assert_eq!(
        notices("metrics: {enabled: false, listen: \"127.0.0.1:29000\"}"),
        ["metrics.listen: has no effect: metrics.enabled is false"]
    );
    for fine in [
        "metrics: {enabled: false}",
        "metrics: {listen: \"127.0.0.1:29000\"}",
    ] {
        assert!(notices(fine).is_empty(), "{fine}");
    }
}

#[test]
fn admission_without_what_it_needs_is_a_warning() {
    let notices = |text: &str| -> Vec<String> {
        let settings = sources::settings(text);
        let keys = settings.ignored_keys().iter();
        keys.filter(|key| key.path == "routing.admission")
            .map(|key| key.message.clone())
            .collect()
    };
    let on = "routing: {admission: live_set}";
    for (text, message) in [
        (
            format!("{on}\nqueue: {{enabled: false}}"),
            "has no effect: queue.enabled is false",
        ),
        (
            format!("{on}\nkv_events: {{enabled: false}}"),
            "has no effect: kv_events.enabled is false",
        ),
        (
            "routing: {admission: live_set, policy: round_robin}".to_owned(),
            "has no effect: it applies to the policy warm only",
        ),
        (
            "routing: {admission: live_set, track_active_blocks: false}".to_owned(),
            "has no effect: routing.track_active_blocks is false",
        ),
    ] {
        assert_eq!(notices(&text), [message], "{text}");
    }
    for fine in [on, "routing: {admission: off}\nqueue: {enabled: false}"] {
        assert!(notices(fine).is_empty(), "{fine}");
    }
}

#[test]
fn fetch_without_what_it_needs_is_a_warning() {
    let notices = |text: &str| -> Vec<String> {
        let settings = sources::settings(text);
        let keys = settings.ignored_keys().iter();
        keys.filter(|key| key.path == "routing.fetch")
            .map(|key| key.message.clone())
            .collect()
    };
    let on = "routing: {fetch: vllm_p2p}";
    for (text, message) in [
        (
            format!("{on}\nkv_events: {{enabled: false}}"),
            "has no effect: kv_events.enabled is false",
        ),
        (
            "routing: {fetch: llm_d, policy: round_robin}".to_owned(),
            "has no effect: it applies to the policy warm only",
        ),
    ] {
        assert_eq!(notices(&text), [message], "{text}");
    }
    for fine in [on, "routing: {fetch: off}\nkv_events: {enabled: false}"] {
        assert!(notices(fine).is_empty(), "{fine}");
    }
}

#[test]
fn an_admission_wait_that_is_not_shorter_than_the_time_limit_is_a_warning() {
    let warns = |text: &str| {
        let settings = sources::settings(text);
        let mut keys = settings.ignored_keys().iter();
        keys.any(|key| key.path == "routing.admission_wait")
    };
    for (text, expected) in [
        ("routing: {admission: live_set}", true),
        (
            "routing: {admission: live_set, admission_wait: 200s}\nrequest: {timeout: 200s}",
            true,
        ),
        (
            "routing: {admission: live_set, admission_wait: 200s}\nrequest: {timeout: 201s}",
            false,
        ),
        (
            "routing: {admission: live_set}\nqueue: {enabled: false}",
            false,
        ),
        ("routing: {admission_wait: 400s}", false),
    ] {
        assert_eq!(warns(text), expected, "{text}");
    }
}

#[test]
fn no_two_listeners_have_the_same_address() {
    for (text, path, other) in [
        (
            "metrics: {listen: \"127.0.0.1:9191\"}",
            "metrics.listen",
            "admin.listen",
        ),
        (
            "metrics: {listen: \"127.0.0.1:8080\"}",
            "metrics.listen",
            "server.listen",
        ),
        (
            "server: {also_listen: [\"127.0.0.1:1\", \"127.0.0.1:8080\"]}",
            "server.also_listen",
            "server.listen",
        ),
        (
            "server: {probe_listen: \"unix:/p\"}\nmetrics: {listen: \"unix:/p\"}",
            "metrics.listen",
            "server.probe_listen",
        ),
        (
            "server: {also_listen: [\"127.0.0.1:9191\"]}",
            "admin.listen",
            "server.also_listen",
        ),
        (
            "server: {port: 29000}\nmetrics: {listen: \"127.0.0.1:29000\"}",
            "metrics.listen",
            "server.listen",
        ),
    ] {
        let found = problem(text);
        assert_eq!(found.path, path, "{text}");
        assert!(
            found.message.ends_with(&format!("is also `{other}`")),
            "{found}"
        );
    }
    sources::settings(
        "server: {listen: \"127.0.0.1:0\", probe_listen: \"127.0.0.1:0\"}\nmetrics: {listen: \"127.0.0.1:0\"}",
    );
}

#[test]
#[contract("F76")]
fn the_body_budget_is_at_least_the_limit_of_one_body() {
    for (yaml, path) in [
        ("server: {max_held_bytes: 1MiB}", "server.max_held_bytes"),
        ("server: {max_body_bytes: 2GiB}", "server.max_body_bytes"),
        (
            "server: {max_body_bytes: 2MiB, max_held_bytes: 1MiB}",
            "server.max_held_bytes",
        ),
    ] {
        let problem = problem(yaml);
        assert_eq!(problem.path, path, "{yaml}");
        assert_eq!(
            problem.expected.as_deref(),
            Some("max_held_bytes >= max_body_bytes")
        );
    }
    sources::settings("server: {max_body_bytes: 2GiB, max_held_bytes: 2GiB}");
}

#[test]
fn parity_ratios_that_contradict_each_other_are_one_problem_that_names_both() {
    for (text, path, message) in [
        (
            "parity: {downgrade_ratio: 0.04}",
            "parity.downgrade_ratio",
            "parity.downgrade_ratio 0.04 is below parity.drift_ratio 0.05",
        ),
        (
            "parity: {drift_ratio: 0.3}",
            "parity.drift_ratio",
            "parity.downgrade_ratio 0.2 is below parity.drift_ratio 0.3",
        ),
        (
            "parity: {recover_ratio: 0.06}",
            "parity.recover_ratio",
            "parity.drift_ratio 0.05 is below parity.recover_ratio 0.06",
        ),
        (
            "parity: {drift_ratio: 0.01, recover_ratio: 0.015}",
            "parity.drift_ratio",
            "parity.drift_ratio 0.01 is below parity.recover_ratio 0.015",
        ),
    ] {
        let problem = problem(text);
        assert_eq!(
            (
                problem.path.as_str(),
                problem.message.as_str(),
                problem.line
            ),
            (path, message, Some(1))
        );
        assert_eq!(
            problem.expected.as_deref(),
            Some("downgrade_ratio >= drift_ratio >= recover_ratio")
        );
    }
    sources::settings("parity: {downgrade_ratio: 0.1, drift_ratio: 0.1, recover_ratio: 0.1}");
    assert_eq!(
        problem("parity: {downgrade_ratio: 2}").path,
        "parity.downgrade_ratio"
    );
    assert_eq!(
        problem("parity: {min_joined: 0}").expected.as_deref(),
        Some("a whole number from 1 to 2048")
    );
}

#[test]
fn worker_names_are_unique_and_valid_in_headers() {
    let twice = problem(
        "workers:\n  - {name: a, url: \"http://h:1\"}\n  - {name: a, url: \"http://h:2\"}\n",
    );
    assert_eq!(twice.message, "`a` is also the name of workers[0]");
    assert_eq!(twice.line, Some(3));
    assert_eq!(
        problem("workers: [http://h:1, http://h:1]").path,
        "workers[1].name"
    );
    for name in ["a/0", "a b", "ü", "a,b", ""] {
        let found = problem(&format!(
            "workers: [{{name: \"{name}\", url: \"http://h:1\"}}]"
        ));
        assert_eq!(found.path, "workers[0].name", "{found}");
    }
}

#[test]
fn a_key_and_its_alias_together_are_rejected() {
    let found = problem("workers: [http://h:1]\nbackends: [http://h:2]\n");
    assert_eq!((found.path.as_str(), found.line), ("backends", Some(2)));
}

#[test]
fn a_duplicate_key_does_not_hide_other_problems() {
    let found = problems("server: {port: 1}\nserver: {port: 2}\nrouting: {polcy: warm}\n");
    let paths: Vec<_> = found
        .iter()
        .map(|problem| (problem.line, problem.path.as_str()))
        .collect();
    assert_eq!(paths, [(Some(2), "server"), (Some(3), "routing.polcy")]);
}

#[test]
fn a_file_with_thousands_of_problems_ends_in_a_count() {
    let text: String = (0..5_000)
        .map(|number| format!("key{number}: 1\n"))
        .collect();
    let found = problems(&text);
    assert_eq!(found.len(), 201);
    assert_eq!(found[200].message, "and 4800 more problems");
}

#[test]
fn a_problem_found_after_loading_gets_the_place_of_its_key() {
    let text = "models:\n  entries:\n    org/m-1.5: {tokenizer: /no/such}\n";
    let settings =
        load_all(text, &[("WARMROUTE_ADMIN__TOKEN_FILE", "/t")], &[]).expect("nothing wrong yet");
    let late = config::Problem::bad_value(
        "models.entries[\"org/m-1.5\"].tokenizer",
        "/no/such",
        "no tokenizer.json there",
    );
    assert_eq!(
        settings.locate(late).to_string(),
        "warmroute.yaml: line 3, column 28: models.entries[\"org/m-1.5\"].tokenizer: no tokenizer.json there"
    );
    let late = settings.locate(config::Problem::bad_value(
        "admin.token_file",
        "/t",
        "too short",
    ));
    assert_eq!(
        late.to_string(),
        "WARMROUTE_ADMIN__TOKEN_FILE: admin.token_file: too short"
    );
    let late = settings.locate(config::Problem::bad_value(
        "routing.policy",
        "warm",
        "tired",
    ));
    assert_eq!(late.to_string(), "configuration: routing.policy: tired");
}

#[test]
fn a_section_that_is_not_a_mapping_is_rejected() {
    for text in ["- a\n", "hello", "5", "[]"] {
        assert_eq!(problem(text).message, "the text is not a mapping", "{text}");
    }
}

#[test]
#[contract("V37")]
fn a_unix_socket_with_a_prefill_or_decode_role_is_rejected_with_the_reason() {
    for role in ["prefill", "decode"] {
        let found = problem(&format!(
            "workers: [{{name: e, url: \"unix:///run/e.sock\", role: {role}}}]\n"
        ));
        assert_eq!(
            (found.path.as_str(), found.line),
            ("workers[0].url", Some(1)),
            "{found}"
        );
        assert!(
            found
                .message
                .contains("handed over between hosts and ports"),
            "{found}"
        );
    }
    settings("workers: [{name: e, url: \"unix:///run/e.sock\"}]\n");
}

#[test]
#[contract("V37")]
fn a_unix_socket_beside_prefill_or_decode_workers_of_its_model_is_rejected() {
    let config = |models: &str, role: &str, other_models: &str| {
        format!(
            "workers:\n  - {{name: e, url: \"unix:///run/e.sock\", models: [{models}]}}\n  - {{name: p, url: \
             \"http://h:1\", role: {role}, models: [{other_models}]}}\n"
        )
    };
    for (models, role, other_models) in [
        ("", "prefill", ""),
        ("", "decode", "m"),
        ("m", "prefill", ""),
        ("m, n", "prefill", "n"),
    ] {
        let found = problem(&config(models, role, other_models));
        assert_eq!(
            (found.path.as_str(), found.line),
            ("workers[0].url", Some(2)),
            "{found}"
        );
        let reason = format!("beside the {role} worker `p`: KV caches are handed over");
        assert!(found.message.contains(&reason), "{found}");
    }
    settings(&config("m", "prefill", "n"));
    settings(&config("", "unified", ""));
}

#[test]
#[contract("V25")]
fn an_invalid_session_header_name_is_rejected_with_the_expected_form() {
    for bad in ["x session", "\"\"", "x-sessi\u{f6}n", "\"a:b\""] {
        let problems = sources::problems(&format!(
            "routing: {{session: {{headers: [x-good, {bad}]}}}}\n"
        ));
        assert_eq!(problems.len(), 1, "{bad}: {problems:?}");
        let text = problems[0].to_string();
        assert!(
            text.contains("routing.session.headers[1]") && text.contains("the name of a header"),
            "{text}"
        );
    }
    let settings =
        sources::settings("routing: {session: {mode: hard, headers: [X-Room, session_id]}}\n");
    assert_eq!(settings.routing.session.headers, ["x-room", "session_id"]);
}

#[test]
fn a_bad_value_of_the_file_is_reported_even_where_a_flag_or_a_variable_covers_it() {
    let text =
        "routing: {policy: wram, temperature: 11}\nworkers: [{url: 'http://h:1', wieght: 2}]\n";
    let env = [("WARMROUTE_ROUTING__TEMPERATURE", "1.0")];
    let flags = [
        ("routing.policy", "random", "--policy"),
        ("workers", "http://127.0.0.1:1", "-w"),
    ];
    let found = load_all(text, &env, &flags).expect_err("three values are wrong");
    let paths: Vec<_> = found
        .iter()
        .map(|problem| (problem.line, problem.path.as_str()))
        .collect();
    assert_eq!(
        paths,
        [
            (Some(1), "routing.policy"),
            (Some(1), "routing.temperature"),
            (Some(2), "workers[0].wieght")
        ]
    );
    // One that is wrong without them as well is reported once.
    let flags = [("routing.policy", "random", "--policy")];
    let found = load_all("routing: {temperature: 11}\n", &[], &flags).expect_err("a wrong value");
    assert_eq!(only(found).path, "routing.temperature");
    // A variable of the file need not be set where its value is not used.
    let text = "routing: {policy: \"${POLICY}\"}\n";
    assert!(load_all(text, &[], &flags).is_ok());
    assert!(load_all(text, &[], &[]).is_err());
}

#[test]
fn an_admin_token_has_a_name_of_its_own_and_stands_in_one_place() {
    for (entries, path, expected) in [
        ("[{token: x}]", "admin.tokens[0].name", "missing"),
        ("[{name: a}]", "admin.tokens[0].token", "missing"),
        (
            "[{name: a, token: x, token_file: /t}]",
            "admin.tokens[0].token_file",
            "set beside `token`",
        ),
        (
            "[{name: this machine, token: x}]",
            "admin.tokens[0].name",
            "cannot stand in the audit log",
        ),
        (
            "[{name: a, token: x}, {name: a, token: y}]",
            "admin.tokens[1].name",
            "the name of admin.tokens[0] too",
        ),
        (
            "[{name: a, token: x, role: root}]",
            "admin.tokens[0].role",
            "root",
        ),
    ] {
        let found = problem(&format!("admin: {{tokens: {entries}}}"));
        assert_eq!(found.path, path, "{entries}");
        assert!(found.to_string().contains(expected), "{found}");
    }
    let settings = sources::settings("admin: {tokens: [{name: ops@example.com, token: sk-hush}]}");
    assert_eq!(settings.admin.tokens[0].role, config::AdminRole::Read);
    assert!(!settings.to_json().to_string().contains("sk-hush"));
}
