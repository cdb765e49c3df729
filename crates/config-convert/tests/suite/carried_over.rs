//! What a file of vLLM Router has beside workers and policies, and the reasons for the rest.

use std::time::Duration;

use config::{CacheBackend, CompatHeaders, HookErrorAction, LogLevel, Secret};
use config_convert::{SourceRouter, convert_command, convert_continuum, convert_vllm_router};
use contract_id::contract;
use routing::Policy;

use crate::sources::{lines, load_all, settings};

fn converted(more: &str) -> String {
    let text =
        format!("mode: {{type: regular, worker_urls: ['http://a:1', 'http://b:2/']}}\n{more}");
    convert_vllm_router("router.yaml", &text)
        .unwrap_or_else(|problems| panic!("{text}\n{}", lines(&problems)))
}

fn problem_paths(more: &str) -> Vec<String> {
    let text = format!("mode: {{type: regular, worker_urls: ['http://a:1']}}\n{more}");
    let problems = convert_vllm_router("router.yaml", &text).expect_err("a wrong value");
    problems.into_iter().map(|problem| problem.path).collect()
}

const LISTED: &str = "# no counterpart: ";

/// What has no counterpart, each with its reason.
fn reasons(text: &str) -> Vec<(&str, &str)> {
    let lines: Vec<_> = text.lines().collect();
    lines
        .windows(2)
        .filter(|pair| pair[0].starts_with(LISTED))
        .inspect(|pair| assert!(pair[1].starts_with("#   "), "no reason: {text}"))
        .map(|pair| (&pair[0][LISTED.len()..], &pair[1]["#   ".len()..]))
        .collect()
}

#[test]
#[contract("V44")]
fn a_hook_keeps_its_name_url_time_limit_and_handling_of_errors_and_rejections() {
    for (theirs, on_error) in [
        ("", HookErrorAction::Allow),
        (", on_error: pass", HookErrorAction::Allow),
        (", on_error: block", HookErrorAction::Reject),
    ] {
        for (rejects, status) in [
            ("", 403),
            (", on_reject: block403", 403),
            (", on_reject: block_403", 403),
            (", on_reject: block400", 400),
            (", on_reject: block_400", 400),
        ] {
            for (time, timeout) in [("", 200), (", timeout_ms: 1500", 1500)] {
                let text = converted(&format!(
                    "pre_routing_hooks: [{{name: guard, url: 'http://h:9/check'{theirs}{rejects}{time}, transform: true}}]\n"
                ));
                assert!(reasons(&text).is_empty(), "{text}");
                let hooks = settings(&text).hooks;
                assert_eq!(hooks.len(), 1);
                assert_eq!(
                    (hooks[0].name.as_str(), hooks[0].url.as_str()),
                    ("guard", "http://h:9/check")
                );
                assert_eq!(hooks[0].timeout, Duration::from_millis(timeout));
                assert_eq!(
                    (hooks[0].on_error, hooks[0].on_reject.status),
                    (on_error, status)
                );
            }
        }
    }
    // Both differences of the protocol are told.
    let text = converted("pre_routing_hooks: [{name: g, url: 'http://h:9', transform: false}]\n");
    assert!(text.contains("{request_id, route, model, body}"), "{text}");
    assert_eq!(reasons(&text)[0].0, "pre_routing_hooks[0].transform");
}

#[test]
fn a_hook_whose_rejections_are_ignored_is_left_out_and_a_wrong_word_is_a_problem() {
    let text = converted(
        "pre_routing_hooks:\n  - {name: shadow, url: 'http://h:9', on_reject: pass}\n  - {name: guard, url: 'http://h:9'}\n",
    );
    let [(key, reason)] = reasons(&text)[..] else {
        panic!("{text}")
    };
    assert_eq!(key, "pre_routing_hooks[0]");
    assert!(reason.contains("ignored"), "{reason}");
    let names: Vec<_> = settings(&text)
        .hooks
        .into_iter()
        .map(|hook| hook.name)
        .collect();
    assert_eq!(names, ["guard"]);
    assert_eq!(
        problem_paths(
            "pre_routing_hooks: [{name: g, url: 'ftp://h', on_error: stop, on_reject: 403, timeout_ms: 0}]\n"
        ),
        [
            "pre_routing_hooks[0].url",
            "pre_routing_hooks[0].on_error",
            "pre_routing_hooks[0].on_reject",
            "pre_routing_hooks[0].timeout_ms",
        ]
    );
}

#[test]
#[contract("V44")]
fn rules_for_model_names_keep_their_order_wildcards_and_chains() {
    let text = converted(
        "model_rules:\n  - {match: gpt-4, rewrite: 'meta/70B'}\n  - {match: 'openai/*', rewrite: small, fallback: [never]}\n  \
         - {match: 'a ${b}', fallback: [fp8, small]}\n",
    );
    assert_eq!(
        reasons(&text)
            .iter()
            .map(|(key, _)| *key)
            .collect::<Vec<_>>(),
        ["model_rules[1].fallback"]
    );
    let rules: Vec<_> = settings(&text)
        .models
        .rules
        .into_iter()
        .map(|rule| (rule.pattern, rule.rewrite, rule.fallback))
        .collect();
    let rewrite = |model: &str| Some(model.to_owned());
    assert_eq!(
        rules,
        [
            ("gpt-4".to_owned(), rewrite("meta/70B"), vec![]),
            ("openai/*".to_owned(), rewrite("small"), vec![]),
            (
                "a ${b}".to_owned(),
                None,
                vec!["fp8".to_owned(), "small".to_owned()]
            ),
        ]
    );
}

#[test]
#[contract("V44")]
fn the_response_cache_keeps_its_store_size_and_lifetime() {
    for (theirs, capacity, ttl) in [
        ("cache: {}\n", 1024, 60),
        (
            "cache: {backend: memory, max_entries: 2048, ttl_secs: 120}\n",
            2048,
            120,
        ),
    ] {
        let cache = settings(&converted(theirs)).response_cache;
        assert!(cache.enabled);
        assert_eq!(cache.backend, CacheBackend::Memory);
        assert_eq!(
            (cache.capacity.get(), cache.ttl),
            (capacity, Duration::from_secs(ttl))
        );
    }
    assert!(!settings(&converted("")).response_cache.enabled);
    let text = converted(
        "cache: {backend: redis, redis: {url: 'redis://:pw@r:6380/1', pool_size: 4, key_prefix: 'vllm-router:', \
         connection_timeout_ms: 2000, command_timeout_ms: 500}}\n",
    );
    assert!(reasons(&text).is_empty(), "{text}");
    assert!(text.contains("# better as ${NAME}"), "{text}");
    let cache = settings(&text).response_cache;
    assert_eq!(cache.backend, CacheBackend::Redis);
    let redis = cache.redis;
    assert_eq!(
        (redis.key_prefix.as_str(), redis.pool_size.get()),
        ("vllm-router:", 4)
    );
    let server = redis.server.expect("the server");
    assert_eq!((server.url.host(), server.url.port()), ("r", 6380));
    assert_eq!(
        (server.connect_timeout, server.command_timeout),
        (Duration::from_secs(2), Duration::from_millis(500))
    );
    // Both caches use one server here, and the second may name none.
    let text = converted(
        "policy: {type: lmcache_aware}\ncache: {backend: redis, redis: {url: 'redis://r:6380'}}\nprompt_cache: {backend: redis}\n",
    );
    let ours = settings(&text);
    let shared = ours.prompt_cache_redis.expect("it is chosen");
    assert_eq!((shared.url.host(), shared.url.port()), ("r", 6380));
    assert_eq!(
        problem_paths(
            "cache: {backend: redis, redis: {url: 'redis://r:1'}}\nprompt_cache: {backend: redis, redis: {url: 'redis://s:1'}}\n"
        ),
        ["prompt_cache.redis.url"]
    );
    // A section for a store that is not used.
    assert_eq!(
        reasons(&converted("cache: {redis: {pool_size: 4}}\n"))[0].0,
        "cache.redis"
    );
}

#[test]
#[contract("V44")]
fn the_similarity_cache_keeps_its_model_threshold_and_embedding_server() {
    let text = converted(
        "semantic_cache: {embeddings_url: 'http://e:3', embeddings_model: bge, embeddings_api_key: sk-e, threshold: 0.9, \
         max_entries: 100, ttl_secs: 60, embedding_timeout_ms: 250}\n",
    );
    assert!(reasons(&text).is_empty(), "{text}");
    let ours = settings(&text);
    let server = ours.workers.last().expect("the embedding server");
    assert_eq!(
        (
            server.url.as_str(),
            server.api_key.as_ref().map(Secret::expose)
        ),
        ("http://e:3", Some("sk-e"))
    );
    assert_eq!(ours.workers[0].api_key, None);
    assert!(ours.response_cache.enabled);
    let similar = ours.response_cache.semantic;
    assert_eq!(
        (
            similar.enabled,
            similar.embedding_model.as_deref(),
            similar.threshold
        ),
        (true, Some("bge"), 0.9)
    );
    assert_eq!(
        (similar.max_entries.get(), similar.ttl, similar.timeout),
        (100, Duration::from_secs(60), Duration::from_millis(250))
    );
    // Without a server it is off there, whatever else is set.
    let text = converted("semantic_cache: {threshold: 0.9}\n");
    assert!(!settings(&text).response_cache.enabled);
    let [(key, reason)] = reasons(&text)[..] else {
        panic!("{text}")
    };
    assert_eq!(key, "semantic_cache.threshold");
    assert!(reason.contains("embeddings_url"), "{reason}");
    // One server for both uses is one worker.
    let text = converted(
        "semantic_cache: {embeddings_url: 'http://e:3', embeddings_api_key: one}\nsemantic_cluster: {embeddings_url: \
         'http://e:3', embeddings_api_key: two, clusters: [{name: c, examples: [x], workers: ['http://a:1']}]}\n",
    );
    assert_eq!(settings(&text).workers.len(), 3);
    assert_eq!(reasons(&text).len(), 1, "{text}");
}

#[test]
#[contract("V44")]
fn each_worker_gets_its_own_key_or_that_of_all() {
    let keys = |more: &str| -> Vec<Option<String>> {
        settings(&converted(more))
            .workers
            .iter()
            .map(|worker| worker.api_key.as_ref().map(|key| key.expose().to_owned()))
            .collect()
    };
    let key = |key: &str| Some(key.to_owned());
    assert_eq!(keys(""), [None, None]);
    assert_eq!(keys("api_key: all\n"), [key("all"), key("all")]);
    assert_eq!(
        keys("worker_api_keys: {'http://b:2': 'o${w}n'}\n"),
        [None, key("o${w}n")]
    );
    assert_eq!(
        keys("worker_api_keys: {'http://a:1/': own}\napi_key: all\n"),
        [key("own"), key("all")]
    );
    let text = converted("api_key: all\n");
    assert_eq!(text.matches("# better as ${NAME}").count(), 2, "{text}");
    let ranks = settings(&converted("intra_node_data_parallel_size: 4\n")).workers;
    assert!(
        ranks
            .iter()
            .all(|worker| worker.dp_ranks.map(|n| n.get()) == Some(4))
    );
}

#[test]
#[contract("V43", "V42")]
fn the_decision_log_and_the_headers_are_kept() {
    let text = converted(
        "decision_log: {export_path: /var/log/decisions.jsonl, export_interval_secs: 30, include_request_text: true}\n",
    );
    let log = settings(&text).decisions.log.expect("it is on");
    assert_eq!(log.path.to_str(), Some("/var/log/decisions.jsonl"));
    assert_eq!(log.interval, Duration::from_secs(30));
    assert!(log.include_request_text && !log.chains);
    assert!(text.contains("decisions.log.chains"), "{text}");
    for (exposed, headers) in [("true", vec![CompatHeaders::VllmRouter]), ("false", vec![])] {
        let compat = settings(&converted(&format!("expose_routing_headers: {exposed}\n"))).compat;
        assert_eq!(
            (
                compat.expose_routing_headers.to_string().as_str(),
                compat.headers
            ),
            (exposed, headers)
        );
    }
}

#[test]
fn limits_switches_and_the_tokenizer_of_a_file_are_kept() {
    let ours = settings(&converted(
        "max_payload_size: 1048576\nrequest_timeout_secs: 1800\nqueue_size: 50\nqueue_timeout_secs: 60\nlog_level: trace\n\
         circuit_breaker: {failure_threshold: 7, timeout_duration_secs: 20}\npolicy: {type: consistent_hash, virtual_nodes: \
         160}\n",
    ));
    assert_eq!(ours.server.max_body_bytes, 1 << 20);
    assert_eq!(ours.request.timeout, Duration::from_secs(1800));
    assert_eq!(
        (ours.queue.max_entries, ours.queue.wait),
        (50, Duration::from_secs(60))
    );
    assert_eq!(ours.logging.level, LogLevel::Trace);
    assert_eq!(
        (
            ours.circuit_breaker.consecutive_failures.get(),
            ours.circuit_breaker.ejection
        ),
        (7, Duration::from_secs(20))
    );
    assert_eq!(ours.routing.policy(), Policy::ConsistentHash);
    assert_eq!(ours.prefix_routing.virtual_nodes, 160);
    let text = converted(
        "queue_size: 0\ndisable_retries: true\nretry: {max_retries: 5}\ndisable_circuit_breaker: true\nmodel_path: m\n\
         tokenizer_path: /t\n",
    );
    let listed: Vec<_> = reasons(&text).iter().map(|(key, _)| *key).collect();
    assert_eq!(listed, ["retry.max_retries", "model_path"]);
    let ours = settings(&text);
    assert!(!ours.queue.enabled && !ours.circuit_breaker.enabled);
    assert_eq!(
        (ours.retry.max_attempts.get(), ours.request.max_retries),
        (1, 0)
    );
    assert!(text.contains("tokenizer: \"/t\""), "{text}");
}

#[test]
#[contract("V31", "V44")]
fn keys_of_clients_keep_their_limits_and_models() {
    let text = converted(
        "api_keys:\n- key: sk-a\n  name: team-a\n  rate_limit_rps: 10\n  max_concurrent: 5\n  allowed_models: \
         ['llama-*', gpt]\n  enabled: true\n  metadata: {owner: x}\n- {key: 'sk-${b}', name: b, rate_limit_rps: 0, \
         max_concurrent: 0, enabled: false, tier: gold}\n",
    );
    let listed: Vec<_> = reasons(&text).iter().map(|(key, _)| *key).collect();
    assert_eq!(listed, ["api_keys[1].tier"]);
    let tenants = settings(&text).tenants.api_keys;
    let [a, b] = &tenants[..] else {
        panic!("{text}");
    };
    assert_eq!((&*a.name, a.rate_limit_rps), ("team-a", Some(10.0)));
    assert_eq!(a.max_concurrent.map(|most| most.get()), Some(5));
    assert_eq!(a.allowed_models, ["llama-*", "gpt"]);
    assert_eq!((a.enabled, &*a.metadata["owner"]), (true, "x"));
    assert_eq!((b.rate_limit_rps, b.max_concurrent), (None, None));
    // What `printf '%s' 'sk-${b}' | sha256sum` prints.
    let digest = "8709b2ad5bbc34dbb249e3cdb3936f2d213aeb18560ac0461b110e9abcf8eea6";
    assert_eq!(b.key_sha256.as_ref().map(Secret::expose), Some(digest));
    assert!(!b.enabled);
    assert_eq!(
        problem_paths("api_keys: [{name: a, key: k, rate_limit_rps: -1}]\n"),
        ["api_keys[0].rate_limit_rps"]
    );
}

#[test]
#[contract("V33", "V44")]
fn services_that_validate_keys_are_asked_here_too() {
    let text = converted("api_key_validation_urls: ['http://auth/v1/check', 'https://b']\n");
    let services = settings(&text).tenants.key_validation;
    let urls: Vec<&str> = services.iter().map(|service| &*service.url).collect();
    assert_eq!(urls, ["http://auth/v1/check", "https://b"], "{text}");
}

/// Every key of that router's file that stays behind, each once.
const LEFT: &str = "admin_api_key: sk-hush\ninbound_api_key: sk-hush\n\
    discovery: {enabled: true}\nmetrics: {host: metrics.local}\nlog_dir: /tmp\nhost: router.local\n\
    request_id_headers: [x]\nmax_concurrent_requests: 5\nrate_limit_tokens_per_second: 5\ncors_allowed_origins: ['*']\n\
    retry: {backoff_multiplier: 2, jitter_factor: 0.1}\ncircuit_breaker: {success_threshold: 2, window_duration_secs: 9}\n\
    enable_igw: true\ntokenizer_model_map: {a: b}\nhistory_backend: none\nenable_profiling: true\nprofile_timeout_secs: 9\n\
    worker_startup_timeout_secs: 9\nworker_startup_check_interval_secs: 9\nconnection_mode: {type: http}\n\
    policy: {type: cache_aware, cache_threshold: 0.5, balance_abs_threshold: 3, balance_rel_threshold: 2, \
    eviction_interval_secs: 9, max_tree_size: 9}\nprefill_policy: {type: power_of_two, load_check_interval_secs: 9}\n\
    decode_policy: {type: manual}\nmodel_path: 's3://b/m'\nprompt_cache: {backend: redis, redis: {key_prefix: x}}\n\
    shared_prefix_routing: {backend: redis}\n";

#[test]
#[contract("V44")]
fn each_key_without_a_counterpart_has_a_reason_of_its_own() {
    let text = converted(LEFT);
    let reasons = reasons(&text);
    assert_eq!(reasons.len(), 32, "{text}");
    for (key, reason) in &reasons {
        assert!(!reason.contains("does not know"), "{key}");
    }
    assert!(!text.contains("sk-hush"), "{text}");
    let text = converted("my_key: 1\n");
    assert!(text.contains("# no counterpart: my_key\n#   the conversion does not know it\n"));
    let flags = "--worker-urls http://a:1 --log-dir /tmp --prometheus-duration-buckets 1 2 --cors-allowed-origins x --nonsense";
    let text = convert_command(SourceRouter::VllmRouter, "flags", flags).expect("flags");
    let known = |(_, reason): &&(&str, &str)| !reason.contains("does not know");
    assert_eq!(
        self::reasons(&text).iter().filter(known).count(),
        3,
        "{text}"
    );
    assert_eq!(self::reasons(&text).len(), 4, "{text}");
}

#[test]
#[contract("V44")]
fn the_metrics_keep_their_listener() {
    let listen = |theirs: &str| {
        let listen = settings(&converted(theirs)).metrics.listen;
        listen.map(|address| address.to_string())
    };
    let at = |address: &str| Some(address.to_owned());
    assert_eq!(listen(""), None);
    // Its own defaults.
    assert_eq!(listen("metrics: {}\n"), at("127.0.0.1:29000"));
    assert_eq!(listen("metrics: {port: 1}\n"), at("127.0.0.1:1"));
    assert_eq!(listen("metrics: {host: '::1', port: 1}\n"), at("[::1]:1"));
    assert_eq!(
        listen("metrics: {host: localhost}\n"),
        at("127.0.0.1:29000")
    );
    let named = converted("metrics: {host: metrics.local, port: 1}\n");
    assert_eq!(
        reasons(&named),
        [("metrics.host", "names are not resolved: write an address")]
    );
    assert!(named.contains("  listen: \"127.0.0.1:1\"\n"), "{named}");
}

#[test]
#[contract("V44")]
fn the_metrics_of_a_command_line_keep_port_29000_on_loopback_unless_a_flag_says_otherwise() {
    let convert = |router, flags: &str| {
        let line = format!("--worker-urls http://a:1 {flags}");
        let text = convert_command(router, "flags", &line).expect("flags");
        assert!(reasons(&text).is_empty(), "{text}");
        text
    };
    for router in [SourceRouter::Smg, SourceRouter::VllmRouter] {
        for (flags, address) in [
            ("", "127.0.0.1:29000"),
            ("--prometheus-port 9100", "127.0.0.1:9100"),
            ("--prometheus-host ::1", "[::1]:29000"),
            ("--router-prometheus-port=0", "127.0.0.1:0"),
        ] {
            let listen = settings(&convert(router, flags)).metrics.listen;
            assert_eq!(
                listen.map(|listen| listen.to_string()).as_deref(),
                Some(address),
                "{flags}"
            );
        }
        // Open to other machines: the file says what it needs, and does not load unchanged.
        let open = convert(router, "--prometheus-host 0.0.0.0");
        assert!(
            open.contains(
                "  listen: \"0.0.0.0:29000\"  # others can reach this: set admin.token_file"
            ),
            "{open}"
        );
        assert!(open.contains("in this version: metrics.listen\n"), "{open}");
    }
}

#[test]
#[contract("V44")]
fn the_collector_of_traces_is_kept_with_its_port_for_http() {
    let exported = |theirs: &str| {
        let text = converted(theirs);
        assert!(reasons(&text).is_empty(), "{text}");
        let tracing = settings(&text).tracing;
        (tracing.otlp_endpoint, tracing.sample_ratio)
    };
    let url = |url: &str| Some(url.to_owned());
    assert_eq!(
        exported("trace_config: {otlp_traces_endpoint: 'c:4317', sampling_ratio: 0.5}\n"),
        (url("http://c:4318"), 0.5)
    );
    // Its own defaults: this collector, and every trace.
    assert_eq!(
        exported("trace_config: {enable_trace: true}\n"),
        (url("http://localhost:4318"), 1.0)
    );
    let off = converted("trace_config: {enable_trace: false, otlp_traces_endpoint: 'c:4317'}\n");
    assert_eq!(
        reasons(&off),
        [(
            "trace_config.otlp_traces_endpoint",
            "no traces are exported there: enable_trace is false"
        )]
    );
    assert_eq!(settings(&off).tracing.otlp_endpoint, None);
}

#[test]
#[contract("V44")]
fn the_traces_of_a_command_line_are_kept_where_it_enables_them() {
    let endpoint = |flags: &str| {
        let line = format!("--worker-urls http://a:1 {flags}");
        let text = convert_command(SourceRouter::Smg, "flags", &line).expect("flags");
        settings(&text).tracing.otlp_endpoint
    };
    let enabled = endpoint("--enable-trace --otlp-traces-endpoint c:4317");
    assert_eq!(enabled.as_deref(), Some("http://c:4318"));
    assert_eq!(endpoint("--otlp-traces-endpoint c:4317"), None);
    assert_eq!(endpoint(""), None);
}

#[test]
fn the_similarity_cache_of_a_command_line_is_kept() {
    let flags = "--worker-urls http://a:1 --semantic-cache-embeddings-url http://e:2 --semantic-cache-threshold 0.8 \
                 --semantic-cache-ttl-secs 9 --semantic-cache-max-entries 5 --semantic-cache-embedding-timeout-ms 7 \
                 --semantic-cache-embeddings-model bge --intra-node-data-parallel-size 2";
    let text = convert_command(SourceRouter::VllmRouter, "flags", flags).expect("flags");
    assert!(reasons(&text).is_empty(), "{text}");
    let ours = settings(&text);
    let similar = ours.response_cache.semantic;
    assert_eq!(
        (similar.threshold, similar.ttl, similar.max_entries.get()),
        (0.8, Duration::from_secs(9), 5)
    );
    assert_eq!(ours.workers.len(), 2);
    assert_eq!(ours.workers[0].dp_ranks.map(|n| n.get()), Some(2));
}

#[test]
#[contract("CK1", "CK15", "A12")]
fn a_continuum_file_with_prefix_routing_keeps_it_whatever_its_strategy() {
    let strategies = ["RoundRobin", "LeastLatency", "Random", "PrefixAwareHash"];
    let places: [fn(&str) -> String; 2] = [
        |name| format!("selection_strategy: {name}\n"),
        |name| format!("load_balancer: {{strategy: {name}}}\n"),
    ];
    for (ring, view) in [(false, false), (true, false), (false, true), (true, true)] {
        for (strategy, place) in strategies
            .iter()
            .flat_map(|name| places.map(|place| (name, place)))
        {
            let theirs = format!(
                "{}prefix_routing: {{enabled: {ring}}}\nkv_cache_index: {{enabled: {view}}}\nbackends: ['http://a:1']\n",
                place(strategy)
            );
            let text = convert_continuum("config.yaml", &theirs)
                .unwrap_or_else(|problems| panic!("{theirs}\n{}", lines(&problems)));
            let ours = load_all(&text, &[], &[])
                .unwrap_or_else(|problems| panic!("{text}\n{}", lines(&problems)));
            let kept = ours.routing.policy() == Policy::Continuum;
            assert_eq!(kept, ring || view, "{text}");
            assert_eq!(ours.prefix_routing.enabled, ring);
            assert_eq!(ours.kv_cache_index.enabled, view);
            // The strategy is the policy, or that of requests without a prefix; the ring is listed.
            let is_ring = *strategy == "PrefixAwareHash";
            let chosen = if kept {
                ours.routing.fallback
            } else {
                ours.routing.policy()
            };
            let expected: Policy = if kept && is_ring {
                Policy::LeastLoaded
            } else {
                strategy.parse().expect("a policy")
            };
            assert_eq!(chosen, expected, "{text}");
            assert_eq!(reasons(&text).len(), usize::from(kept && is_ring), "{text}");
            assert!(ours.ignored_keys().is_empty(), "{:?}", ours.ignored_keys());
        }
    }
}

#[test]
fn keys_of_a_continuum_file_without_a_counterpart_have_reasons() {
    let theirs = "global_prompts: {default: x}\nfiles: {enabled: true}\nrate_limiting: {}\napi_keys: {mode: blocking}\n\
                  model_metadata_file: m.yaml\nserver: {connection_pool_size: 9, cors: {}}\ntracing: {enabled: true}\n\
                  backends: [{name: a, url: 'http://a:1', retry_override: {}}]\n";
    let text = convert_continuum("config.yaml", theirs).expect("a file");
    let reasons = reasons(&text);
    assert_eq!(reasons.len(), 9, "{text}");
    for (key, reason) in reasons {
        assert!(!reason.contains("does not know"), "{key}");
        let declined = ["global_prompts", "files"].contains(&key);
        assert_eq!(reason.contains("docs/compat.md"), declined, "{key}");
    }
}
