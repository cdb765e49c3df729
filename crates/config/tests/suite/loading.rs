//! Settings loaded from a valid configuration.

use std::{num::NonZeroU32, time::Duration};

use config::{
    ChatTemplateSetting, CheckMethod, EngineKind, EventSource, ListenSetting, LogFormat, LogLevel,
    ReplayEndpoint, Settings, TokenizerSetting,
};
use contract_id::contract;
use kv_blocks::Tier;
use routing::Policy;

use crate::sources::{self, lines, load_all, settings};

fn listen(text: &str) -> ListenSetting {
    text.parse().expect("an address")
}

fn with_flags(text: &str, env: &[(&str, &str)], flags: &[(&str, &str, &str)]) -> Settings {
    load_all(text, env, flags).unwrap_or_else(|problems| panic!("{}", lines(&problems)))
}

#[test]
fn an_empty_file_gives_every_default() {
    for text in ["", "# nothing\n", "server:\nworkers:\n", "~\n"] {
        let settings = settings(text);
        assert_eq!(settings.server.listen, listen("127.0.0.1:8080"));
        assert_eq!(settings.server.max_head_bytes, 32 << 10);
        assert_eq!(settings.server.max_body_bytes, 32 << 20);
        assert_eq!(settings.server.max_connections, None);
        assert_eq!(settings.server.keep_alive, Duration::from_secs(75));
        assert_eq!(settings.admin.listen, listen("127.0.0.1:9191"));
        assert!(settings.workers.is_empty());
        assert_eq!(settings.models.get("any").tokenizer, TokenizerSetting::Auto);
        assert_eq!(settings.routing.policy().as_str(), "warm");
        assert_eq!(settings.routing.tokenize_budget, Duration::from_millis(2));
        assert_eq!(settings.routing.render_timeout, Duration::ZERO);
        assert_eq!(settings.routing.speculative_ttl, Duration::from_secs(2));
        assert_eq!(settings.kv_events.memory_budget, 512 << 20);
        assert_eq!(settings.kv_events.block_hash_seed, 1337);
        assert_eq!(settings.kv_events.default_port, 5557);
        assert_eq!(settings.kv_events.prediction.max_blocks, 1 << 20);
        assert_eq!(settings.decisions.ring_entries, 1000);
        assert_eq!(settings.decisions.ring_bytes, 16 << 20);
        assert_eq!(settings.logging.level, LogLevel::Info);
        assert_eq!(settings.logging.format, LogFormat::Auto);
    }
}

#[test]
#[contract("V43")]
fn the_decision_log_is_off_without_a_path_and_has_two_names() {
    assert_eq!(settings("").decisions.log, None);
    let usual = settings("decision_log: {path: /tmp/d.jsonl, include_request_text: false}\n")
        .decisions
        .log;
    let usual = usual.expect("a log");
    assert_eq!(
        (usual.path.to_str(), usual.interval),
        (Some("/tmp/d.jsonl"), Duration::from_secs(10))
    );
    assert!(!usual.chains && !usual.include_request_text);
    let chains = settings("decisions: {log: {path: d, interval: 1s, chains: true}}\n")
        .decisions
        .log
        .expect("a log");
    assert!(chains.chains && chains.interval == Duration::from_secs(1));
}

#[test]
#[contract("CH1")]
fn health_checks_have_the_documented_defaults_and_keys() {
    let ours = settings("").health_checks;
    let text = "health_checks:\n  enabled: true\n  interval: \"30s\"\n  timeout: \"10s\"\n  unhealthy_threshold: 3\n  \
                healthy_threshold: 2\n  warmup_check_interval: \"1s\"\n  max_warmup_duration: \"300s\"\n";
    let theirs = settings(text).health_checks;
    assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    assert_eq!(ours.recovery_interval, Duration::from_millis(250));
    // The default endpoint depends on the worker type; the documented one applies if written.
    assert_eq!(ours.endpoint, None);
    let named = settings("health_checks: {endpoint: /v1/models}").health_checks;
    assert_eq!(named.endpoint.as_deref(), Some("/v1/models"));
}

#[test]
#[contract("CH9", "CH10")]
fn requests_have_the_documented_defaults() {
    let settings = settings("");
    assert_eq!(settings.retry.max_delay, Duration::from_secs(30));
    assert!(settings.retry.exponential_backoff);
    assert!(settings.retry.jitter);
    assert_eq!(settings.request.timeout, Duration::from_secs(300));
    assert_eq!(settings.request.max_retries, 3);
    let own_delay = sources::settings("request: {retry_delay: 1s}")
        .retry
        .base_delay;
    assert_eq!(own_delay, Duration::from_secs(1));
}

#[test]
fn the_smaller_retry_limit_applies() {
    let sends = |text: &str| settings(text).retry.max_attempts.get();
    assert_eq!(sends(""), 3);
    assert_eq!(sends("request: {max_retries: 0}"), 1);
    assert_eq!(
        sends("request: {max_retries: 1}\nretry: {max_attempts: 9}"),
        2
    );
    assert_eq!(sends("retry: {max_attempts: 2}"), 2);
}

#[test]
fn request_retry_delay_applies_only_if_retry_base_delay_is_not_set() {
    let delay = |text: &str| settings(text).retry.base_delay;
    assert_eq!(delay(""), Duration::from_millis(100));
    assert_eq!(
        delay("request: {retry_delay: 700ms}"),
        Duration::from_millis(700)
    );
    assert_eq!(
        delay("request: {retry_delay: 700ms}\nretry: {base_delay: 100ms}"),
        Duration::from_millis(100)
    );
}

#[test]
fn a_bare_number_is_seconds_or_bytes() {
    let settings = settings("server: {keep_alive: 60, head_timeout: 0.5, max_body_bytes: 4096}");
    assert_eq!(settings.server.keep_alive, Duration::from_secs(60));
    assert_eq!(settings.server.head_timeout, Duration::from_millis(500));
    assert_eq!(settings.server.max_body_bytes, 4096);
}

#[test]
fn a_worker_is_a_url_a_named_url_or_a_mapping() {
    let settings = settings(
        "workers:\n  - http://127.0.0.1:8001\n  - w2=http://127.0.0.1:8002\n  - {name: w3, url: \"http://h:1\", weight: 2}\n",
    );
    let names: Vec<_> = settings
        .workers
        .iter()
        .map(|worker| (worker.name.as_str(), worker.url.as_str()))
        .collect();
    assert_eq!(
        names,
        [
            ("127.0.0.1:8001", "http://127.0.0.1:8001"),
            ("w2", "http://127.0.0.1:8002"),
            ("w3", "http://h:1")
        ]
    );
    assert_eq!(settings.workers[2].weight, 2.0);
    assert_eq!(
        settings.workers[0].allow_tiers,
        [Tier::Device, Tier::Host, Tier::Disk]
    );
    assert_eq!(settings.workers[0].engine, None);
}

#[test]
#[contract("CH30", "CH8")]
fn backends_is_an_alias_of_workers_and_accepts_every_key_of_a_backend() {
    let text = "
backends:
  - name: vllm-custom
    type: vllm
    url: http://localhost:8000
    models: [my-model]
    health_check:
      endpoint: /custom-health
      fallback_endpoints: [/health, /v1/models]
      method: POST
      body: {check: true}
      timeout: 10s
      accept_status: [200, 204]
      warmup_status: [503]
    block_size: 32
    dp_ranks: 2
    api_key: ${ENGINE_KEY}
    kv_events: {source: zmq, endpoint: \"tcp://localhost:5557\", replay_endpoint: none, topic: kv}
    allow_tiers: [device]
";
    let settings = with_flags(text, &[("ENGINE_KEY", "sk-1")], &[]);
    let worker = &settings.workers[0];
    assert_eq!(worker.engine, Some(EngineKind::Vllm));
    assert_eq!(worker.models, ["my-model"]);
    assert_eq!(
        worker.health_check.endpoint.as_deref(),
        Some("/custom-health")
    );
    assert_eq!(
        worker.health_check.fallback_endpoints.as_deref(),
        Some(&["/health".into(), "/v1/models".into()][..])
    );
    assert_eq!(worker.health_check.method, Some(CheckMethod::Post));
    assert_eq!(
        worker.health_check.body,
        Some(serde_json::json!({"check": true}))
    );
    assert_eq!(
        worker.health_check.accept_status.as_deref(),
        Some(&[200, 204][..])
    );
    assert_eq!(worker.health_check.timeout, Some(Duration::from_secs(10)));
    assert_eq!(
        worker.block_size.map(kv_blocks::BlockSize::tokens),
        Some(32)
    );
    assert_eq!(worker.dp_ranks, NonZeroU32::new(2));
    assert_eq!(
        worker.api_key.as_ref().map(config::Secret::expose),
        Some("sk-1")
    );
    assert_eq!(worker.kv_events.source, EventSource::Zmq);
    assert_eq!(
        worker.kv_events.endpoint.as_deref(),
        Some("tcp://localhost:5557")
    );
    assert_eq!(worker.kv_events.replay_endpoint, ReplayEndpoint::None);
    assert_eq!(worker.kv_events.topic, "kv");
    assert_eq!(worker.allow_tiers, [Tier::Device]);
}

#[test]
fn a_worker_inherits_unset_values_from_the_global_sections() {
    let settings = settings(
        "models: {defaults: {block_size: 64}}\nkv_events: {topic_filter: kv}\nworkers:\n  - http://a:1\n  - {url: \"http://b:1\", block_size: 16}\n",
    );
    let sizes: Vec<_> = settings
        .workers
        .iter()
        .map(|worker| worker.block_size.map(kv_blocks::BlockSize::tokens))
        .collect();
    assert_eq!(sizes, [Some(64), Some(16)]);
    assert_eq!(settings.workers[0].kv_events.topic, "kv");
}

#[test]
fn a_model_entry_inherits_unset_values_from_the_defaults() {
    let settings = settings(
        "models:\n  defaults: {tokenizer: engine, chat_template: /t.jinja}\n  entries:\n    org/m-1.5: {tokenizer: /models/m}\n    m: {tokenizer: \"hub:org/m\"}\n",
    );
    let model = settings.models.get("org/m-1.5");
    assert_eq!(
        model.tokenizer,
        TokenizerSetting::Directory("/models/m".into())
    );
    assert_eq!(
        model.chat_template,
        ChatTemplateSetting::File("/t.jinja".into())
    );
    assert_eq!(
        settings.models.get("m").tokenizer,
        TokenizerSetting::Hub("org/m".into())
    );
    assert_eq!(
        settings.models.get("other").tokenizer,
        TokenizerSetting::Engine
    );
}

#[test]
fn a_policy_is_accepted_in_every_spelling() {
    for (text, policy) in [
        ("round_robin", "round_robin"),
        ("round-robin", "round_robin"),
        ("RoundRobin", "round_robin"),
        ("KvAware", "kv_aware"),
        ("least-loaded", "least_loaded"),
        ("random", "random"),
        ("WARM", "warm"),
        ("kv", "dynamo_cost"),
        ("dynamo-cost", "dynamo_cost"),
    ] {
        assert_eq!(
            settings(&format!("routing: {{policy: {text}}}"))
                .routing
                .policy()
                .as_str(),
            policy,
            "{text}"
        );
    }
}

#[test]
#[contract("DY2", "DY4")]
fn events_are_followed_unless_disabled_or_overlap_has_no_weight() {
    for (text, followed) in [
        ("", true),
        ("routing: {policy: kv}", true),
        ("routing: {overlap_weight: 0.01}", true),
        ("routing: {policy: kv, overlap_weight: 0}", false),
        (
            "routing: {overlap_weight: 0}\nkv_events: {enabled: true}",
            false,
        ),
        ("kv_events: {enabled: false}", false),
    ] {
        let settings = settings(text);
        assert_eq!(settings.kv_events.enabled, followed, "{text}");
        assert_eq!(
            settings.to_json()["kv_events"]["enabled"],
            followed,
            "{text}"
        );
    }
}

#[test]
#[contract("DY12")]
fn the_busy_threshold_is_a_share_or_off() {
    assert_eq!(settings("").routing.busy_threshold, None);
    for (text, share) in [("0", 0.0), ("0.85", 0.85), ("1.0", 1.0)] {
        assert_eq!(
            settings(&format!("routing: {{busy_threshold: {text}}}"))
                .routing
                .busy_threshold,
            Some(share)
        );
    }
    for text in ["-0.1", "1.01", "85%", ".nan"] {
        assert_eq!(
            sources::problem(&format!("routing: {{busy_threshold: {text}}}")).path,
            "routing.busy_threshold"
        );
    }
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file() {
    let policy =
        |text, env: &[_], flags: &[_]| with_flags(text, env, flags).routing.policy().as_str();
    let file = "routing: {policy: random}";
    let env = [("WARMROUTE_ROUTING__POLICY", "least_loaded")];
    let flag = [("routing.policy", "kv_aware", "--policy")];
    assert_eq!(policy(file, &[], &[]), "random");
    assert_eq!(policy(file, &env, &[]), "least_loaded");
    assert_eq!(policy(file, &env, &flag), "kv_aware");
    assert_eq!(policy("", &env, &[]), "least_loaded");
}

#[test]
fn variables_reach_nested_keys_numbers_lists_and_workers() {
    let settings = with_flags(
        "",
        &[
            ("WARMROUTE_KV_EVENTS__PREDICTION__TTL", "90"),
            ("WARMROUTE_KV_EVENTS__ENABLED", "false"),
            ("WARMROUTE_REQUEST__MAX_RETRIES", "1"),
            ("WARMROUTE_WORKERS", "a=http://h:1, http://h:2"),
            ("WARMROUTE_SERVER__LISTEN", ""),
            ("WARMROUTE_CONFIG", "read by the program"),
            ("WARMROUTE_TEST_PYTHON", "python3"),
            ("HOME", "/root"),
        ],
        &[],
    );
    assert_eq!(settings.kv_events.prediction.ttl, Duration::from_secs(90));
    assert!(!settings.kv_events.enabled);
    assert_eq!(settings.request.max_retries, 1);
    let names: Vec<_> = settings
        .workers
        .iter()
        .map(|worker| worker.name.as_str())
        .collect();
    assert_eq!(names, ["a", "h:2"]);
}

#[test]
fn worker_flags_replace_the_list_and_other_flags_change_its_entries() {
    let settings = with_flags(
        "workers: [http://file:1]\n",
        &[],
        &[
            ("workers", "http://h:1", "-w"),
            ("workers", "w2=http://h:2", "-w"),
            (
                "workers[\"h:1\"].kv_events.endpoint",
                "tcp://h:5557",
                "--kv-events",
            ),
            ("workers[w2].weight", "0.5", "--set"),
            (
                "models.entries[\"org/m-1.5\"].tokenizer",
                "/models/m",
                "--tokenizer",
            ),
            ("server.port", "0", "--port"),
        ],
    );
    let names: Vec<_> = settings
        .workers
        .iter()
        .map(|worker| worker.name.as_str())
        .collect();
    assert_eq!(names, ["h:1", "w2"]);
    assert_eq!(
        settings.workers[0].kv_events.endpoint.as_deref(),
        Some("tcp://h:5557")
    );
    assert_eq!(settings.workers[1].weight, 0.5);
    assert_eq!(
        settings.models.get("org/m-1.5").tokenizer,
        TokenizerSetting::Directory("/models/m".into())
    );
    assert_eq!(settings.server.listen, listen("127.0.0.1:0"));
}

#[test]
fn a_variable_may_hold_any_value_and_is_not_expanded_again() {
    let env = [
        ("PORT", "8123"),
        ("SECS", "7"),
        ("RAW", "${PORT}"),
        ("NAME", "w9"),
    ];
    let text = "server: {listen: \"127.0.0.1:${PORT}\", keep_alive: \"${SECS}\"}\n\
                request: {max_retries: \"${SECS}\"}\nkv_events: {topic_filter: \"${RAW}$${X}\"}\n\
                workers: [{name: \"${NAME}\", url: \"http://h:${PORT}\"}]\n";
    let settings = with_flags(text, &env, &[]);
    assert_eq!(settings.server.listen, listen("127.0.0.1:8123"));
    assert_eq!(settings.server.keep_alive, Duration::from_secs(7));
    assert_eq!(settings.request.max_retries, 7);
    assert_eq!(settings.kv_events.topic_filter, "${PORT}${X}");
    assert_eq!(settings.workers[0].url, "http://h:8123");
}

#[test]
fn anchors_and_merges_work_within_their_limits() {
    let settings = settings(
        "workers:\n  - &base {name: a, url: \"http://h:1\", weight: 3}\n  - {<<: *base, name: b, url: \"http://h:2\"}\n",
    );
    assert_eq!(settings.workers[1].weight, 3.0);
    assert_eq!(settings.workers[1].name, "b");
}

#[test]
fn listeners_may_be_unix_sockets_v6_addresses_or_any_port() {
    for (text, shown) in [
        ("\"[::1]:80\"", "[::1]:80"),
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("localhost:81", "127.0.0.1:81"),
        ("unix:/run/w.sock", "unix:/run/w.sock"),
        ("unix:///run/w.sock", "unix:/run/w.sock"),
    ] {
        assert_eq!(
            settings(&format!("server: {{listen: {text}}}"))
                .server
                .listen
                .to_string(),
            shown
        );
    }
}

#[test]
fn a_model_overrides_routing_and_inherits_unset_values() {
    let text = "routing:\n  temperature: 0.5\n  models:\n    chat: {policy: KvAware, overlap_weight: 2}\n    \"org/*\": {busy_threshold: 0.9}\n";
    let settings = settings(text);
    let models = &settings.routing.models;
    let names: Vec<_> = models.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["chat", "org/*"]);
    let chat = &models[0].1;
    assert_eq!(
        (chat.policy, chat.overlap_weight, chat.temperature),
        (Some(Policy::KvAware), Some(2.0), None)
    );
    assert_eq!(models[1].1.busy_threshold, Some(0.9));
    let shown = &settings.to_json()["routing"]["models"];
    assert_eq!(
        (&shown["chat"]["policy"], &shown["org/*"]["policy"]),
        (&"kv_aware".into(), &serde_json::Value::Null)
    );
}

#[test]
#[contract("DY2")]
fn events_are_followed_if_overlap_has_weight_for_one_model() {
    let followed = |models: &str| {
        settings(&format!(
            "routing: {{overlap_weight: 0, models: {{{models}}}}}\n"
        ))
        .kv_events
        .enabled
    };
    assert!(!followed(""));
    assert!(!followed("a: {policy: kv_aware}, b: {overlap_weight: 0.0}"));
    assert!(followed(
        "a: {overlap_weight: 0.0}, b: {overlap_weight: 0.1}"
    ));
}

#[test]
#[contract("V21")]
fn tier_weights_are_configurable_and_a_model_may_override_them() {
    let weights = |text: &str| {
        let routing = settings(text).routing;
        let all = routing.medium_weights;
        let own = routing
            .models
            .first()
            .and_then(|(_, own)| own.medium_weights.over(all));
        (
            (all.gpu, all.cpu, all.disk),
            own.map(|own| (own.gpu, own.cpu, own.disk)),
        )
    };
    assert_eq!(weights(""), ((1.0, 0.3, 0.05), None));
    let text = "routing: {medium_weights: {cpu: 1, disk: 1.0}, models: {m: {medium_weights: {disk: 0}}, n: {}}}\n";
    assert_eq!(weights(text), ((1.0, 1.0, 1.0), Some((1.0, 1.0, 0.0))));
    assert_eq!(
        weights("routing: {models: {n: {policy: warm}}}\n"),
        ((1.0, 0.3, 0.05), None)
    );
}

#[test]
fn dynamo_cost_has_settings_and_warm_has_none() {
    let usual = settings("").routing.dynamo;
    let figures = (
        usual.active_request_weight,
        usual.host_cache_hit_weight,
        usual.disk_cache_hit_weight,
    );
    assert_eq!(figures, (0.0, 1.0, 1.0));
    let set = settings(
        "routing: {dynamo: {active_request_weight: 64, host_cache_hit_weight: 0.75}, warm: {}}\n",
    );
    assert_eq!(
        (
            set.routing.dynamo.active_request_weight,
            set.routing.dynamo.host_cache_hit_weight
        ),
        (64.0, 0.75)
    );
    assert_eq!(set.to_json()["routing"]["warm"], serde_json::json!({}));
    let problems = load_all(
        "routing: {warm: {spread: 2}, dynamo: {spread: 2}}\n",
        &[],
        &[],
    )
    .unwrap_err();
    let told: Vec<_> = problems
        .iter()
        .map(|p| (p.path.as_str(), p.expected.as_deref().unwrap_or_default()))
        .collect();
    assert_eq!(told[0], ("routing.warm.spread", "no key here"));
    assert!(
        told[1].1.starts_with("one of active_request_weight"),
        "{told:?}"
    );
}

#[test]
#[contract("V44")]
fn clusters_and_prefix_memory_are_off_by_default_with_documented_values() {
    let off = settings("").routing;
    assert_eq!(
        (off.semantic_clusters, off.shared_prefix_routing),
        (None, None)
    );
    let text = "workers: [a=http://h:1, b=http://h:2]\nrouting:\n  shared_prefix_routing: {enabled: true}\n  semantic_clusters:\n    \
                enabled: true\n    embedding_model: bge\n    clusters: [{name: coding, examples: [sort a list], workers: [b]}]\n";
    let on = settings(text).routing;
    let prefixes = on.shared_prefix_routing.expect("enabled");
    assert_eq!(
        (
            prefixes.prefix_chars,
            prefixes.ttl,
            prefixes.write_probability
        ),
        (256, Duration::from_secs(300), 0.1)
    );
    let clusters = on.semantic_clusters.expect("enabled");
    assert_eq!(
        (clusters.threshold, clusters.timeout),
        (0.7, Duration::from_millis(500))
    );
    assert_eq!(
        (
            clusters.clusters[0].name.as_str(),
            clusters.clusters[0].workers.as_slice()
        ),
        ("coding", &["b".to_owned()][..])
    );
}
