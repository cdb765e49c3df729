//! Conversion of vLLM Router's files.

use std::time::Duration;

use config::{Connector, Problem, TokenizerSetting};
use config_convert::convert_vllm_router;
use contract_id::contract;
use kv_blocks::{BlockSize, Role};
use proptest::prelude::*;
use routing::{LmcacheMode, Policy};

use crate::sources::{lines, load, settings};

/// The seed's file, with the decode policy at both positions in use.
const SEEDS: [&str; 2] = [
    include_str!("../../../../tests/fixtures/seed-configs/vllm-router-decode-policy-at-top.yaml"),
    include_str!(
        "../../../../tests/fixtures/seed-configs/vllm-router-decode-policy-under-mode.yaml"
    ),
];

/// A minimal file, which tests extend.
const ONE_WORKER: &str = "mode: {type: regular, worker_urls: ['http://a:1']}\n";

const REFUSED: &str = "# refused by `warmroute config check` in this version: ";

fn converted(text: &str) -> String {
    convert_vllm_router("router.yaml", text)
        .unwrap_or_else(|problems| panic!("{text}\n{}", lines(&problems)))
}

fn problems(text: &str) -> Vec<Problem> {
    convert_vllm_router("router.yaml", text)
        .err()
        .unwrap_or_else(|| panic!("no problem in:\n{text}"))
}

/// The lines without the comments above them.
fn body(text: &str) -> String {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn without_counterpart(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("# no counterpart: "))
        .collect()
}

/// The text without pools and their policies.
fn without_pools(text: &str) -> String {
    let of_pools = [
        "workers:",
        "  - {url: ",
        "  decode_policy:",
        "  prefill_policy:",
    ];
    let keep = |line: &&str| !of_pools.iter().any(|start| line.starts_with(start));
    text.lines()
        .filter(keep)
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
#[contract("V1", "V2")]
fn the_published_file_converts_to_both_pools_the_policy_and_its_values() {
    let expected = "\
workers:
  - {url: \"http://prefill1:8081\", role: prefill}
  - {url: \"http://decode1:8083\", role: decode}
  - {url: \"http://decode2:8084\", role: decode}
kv_events:
  default_port: 5557
  topic_filter: \"\"
models:
  defaults:
    block_size: 16
    tokenizer: \"hub:meta-llama/Llama-3.1-8B-Instruct\"  # of the local model hub, else asked of the engine
routing:
  decode_policy: kv_aware
  speculative: true
  speculative_ttl: 2000ms
";
    for seed in SEEDS {
        let text = converted(seed);
        assert_eq!(body(&text), expected);
        assert_eq!(without_counterpart(&text), [""; 0]);
    }
    assert_eq!(converted(SEEDS[0]), converted(SEEDS[1]));
}

#[test]
#[contract("V1", "V46")]
fn the_published_file_loads_after_conversion() {
    for seed in SEEDS {
        let text = converted(seed);
        assert!(!text.contains(REFUSED), "{text}");
        let settings = settings(&text);
        let roles: Vec<_> = settings
            .workers
            .iter()
            .map(|worker| (worker.url.as_str(), worker.role))
            .collect();
        assert_eq!(
            roles,
            [
                ("http://prefill1:8081", Role::Prefill),
                ("http://decode1:8083", Role::Decode),
                ("http://decode2:8084", Role::Decode)
            ]
        );
        assert_eq!(
            (
                settings.routing.decode_policy,
                settings.routing.prefill_policy
            ),
            (Some(Policy::KvAware), None)
        );
        assert_eq!(
            (
                settings.disaggregation.enabled(),
                settings.disaggregation.connector
            ),
            (true, Connector::Nixl)
        );
    }
}

#[test]
#[contract("V40")]
fn the_threshold_and_the_connector_of_either_mode_are_carried_over() {
    let theirs = |mode: &str| {
        let text = format!(
            "mode: {{type: {mode}, prefill_urls: [[http://p:1, 8998]], decode_urls: [http://d:1]}}\n\
             pd_uncached_token_threshold: 256\n"
        );
        settings(&converted(&text)).disaggregation
    };
    let vllm = theirs("vllm_prefill_decode");
    assert_eq!(
        (vllm.connector, vllm.uncached_token_threshold),
        (Connector::Nixl, 256)
    );
    assert_eq!(theirs("prefill_decode").connector, Connector::Sglang);
}

#[test]
#[contract("V1")]
fn a_prefill_url_is_a_pair_with_a_bootstrap_port_or_null_or_a_bare_url() {
    let text = converted(
        "mode:\n  type: vllm_prefill_decode\n  prefill_urls:\n    - [http://p:1, 8998]\n    - [http://p:2, ~]\n    - http://p:3\n  \
         decode_urls: [http://d:1]\n",
    );
    let pools = "workers:\n  - {url: \"http://p:1\", role: prefill, bootstrap_port: 8998}\n  - {url: \"http://p:2\", role: \
                 prefill}\n  - {url: \"http://p:3\", role: prefill}\n  - {url: \"http://d:1\", role: decode}\n";
    assert_eq!(
        body(&text),
        pools,
        "and no further key, as no policy needs one"
    );
}

#[test]
#[contract("V2")]
fn the_converted_settings_have_the_published_values() {
    let settings = settings(&without_pools(&converted(SEEDS[0])));
    assert_eq!(
        settings.models.get("any").tokenizer,
        TokenizerSetting::Hub("meta-llama/Llama-3.1-8B-Instruct".to_owned())
    );
    assert!(settings.routing.speculative);
    assert_eq!(settings.routing.speculative_ttl, Duration::from_secs(2));
    assert_eq!(
        (
            settings.kv_events.topic_filter.as_str(),
            settings.kv_events.default_port
        ),
        ("", 5557)
    );
    // The block size belongs to a worker, so the file needs one.
    let with_worker = without_pools(&converted(SEEDS[0])) + "workers: ['http://a:1']\n";
    assert_eq!(
        crate::sources::settings(&with_worker).workers[0].block_size,
        BlockSize::new(16).ok()
    );
}

#[test]
#[contract("V2")]
fn other_values_are_converted_and_missing_ones_become_the_source_routers_defaults() {
    let pools =
        "mode: {type: vllm_prefill_decode, prefill_urls: [], decode_urls: ['http://d:1']}\n";
    let defaults = converted(&format!("{pools}decode_policy: {{type: kv_aware}}\n"));
    assert_eq!(without_pools(&body(&defaults)), without_pools(&body(&converted(SEEDS[0]))).replace(
        "    tokenizer: \"hub:meta-llama/Llama-3.1-8B-Instruct\"  # of the local model hub, else asked of the engine\n",
        ""
    ));
    let text = converted(&format!(
        "{pools}decode_policy:\n  type: kv_aware\n  block_size: 32\n  enable_speculative: false\n  speculative_ttl_ms: 1500\n  \
         kv_events: {{topic_filter: 'kv@${{x}}', default_port: 6000}}\nmodel_path: /models/llama/tokenizer.json\n"
    ));
    let settings = settings(&(without_pools(&text) + "workers: ['http://a:1']\n"));
    assert!(!settings.routing.speculative);
    assert_eq!(
        settings.routing.speculative_ttl,
        Duration::from_millis(1500)
    );
    assert_eq!(settings.workers[0].block_size, BlockSize::new(32).ok());
    assert_eq!(
        settings.kv_events.topic_filter, "kv@${x}",
        "a text stays what it is"
    );
    assert_eq!(settings.kv_events.default_port, 6000);
    assert_eq!(
        settings.models.get("any").tokenizer,
        TokenizerSetting::Directory("/models/llama".into())
    );
}

#[test]
fn a_regular_mode_has_plain_workers_also_behind_unix_sockets() {
    let urls = "worker_urls: ['http://a:1', 'unix:///run/vllm.sock']";
    let plain = converted(&format!(
        "mode: {{type: regular, {urls}}}\npolicy: {{type: round_robin}}\n"
    ));
    assert_eq!(
        body(&plain),
        "workers:\n  - {url: \"http://a:1\"}\n  - {url: \"unix:///run/vllm.sock\"}\nrouting:\n  policy: round_robin\n"
    );
    let openai = converted(&format!("mode: {{type: openai, {urls}}}\n"));
    assert!(
        openai.contains("  - {url: \"http://a:1\", type: openai}\n"),
        "{openai}"
    );
}

#[test]
fn medium_weights_and_the_wait_for_an_engine_are_converted() {
    let text = converted(&format!(
        "{ONE_WORKER}policy: {{type: kv_aware, medium_weights: {{gpu: 1, cpu: 0.25}}}}\nengine_wait_timeout_secs: 600\n"
    ));
    assert!(
        text.contains("  medium_weights:\n    cpu: 0.25\n    gpu: 1.0\n"),
        "{text}"
    );
    assert!(
        text.contains("queue:\n  engine_wait_timeout_secs: 600\n"),
        "{text}"
    );
}

#[test]
fn listen_address_retries_and_health_checks_are_converted() {
    let text = converted(&format!(
        "{ONE_WORKER}host: 127.0.0.1\nport: 3001\nretry: {{max_retries: 5, initial_backoff_ms: 50, max_backoff_ms: 30000, \
         backoff_multiplier: 1.5}}\nhealth_check: {{check_interval_secs: 60, timeout_secs: 5, failure_threshold: 3, \
         success_threshold: 2, endpoint: /health}}\n"
    ));
    assert_eq!(without_counterpart(&text), ["retry.backoff_multiplier"]);
    let ours = settings(&text);
    assert_eq!(ours.server.listen.to_string(), "127.0.0.1:3001");
    // That router's `max_retries` counts all attempts.
    assert_eq!(
        (ours.retry.max_attempts.get(), ours.request.max_retries),
        (5, 4)
    );
    assert_eq!(
        (ours.retry.base_delay, ours.retry.max_delay),
        (Duration::from_millis(50), Duration::from_secs(30))
    );
    let checks = &ours.health_checks;
    assert_eq!(
        (checks.interval, checks.timeout),
        (Duration::from_secs(60), Duration::from_secs(5))
    );
    assert_eq!(
        (
            checks.unhealthy_threshold.get(),
            checks.healthy_threshold.get()
        ),
        (3, 2)
    );
    assert_eq!(checks.endpoint.as_deref(), Some("/health"));
    let only_port = settings(&converted(&format!("{ONE_WORKER}port: 3001\n")));
    assert_eq!(only_port.server.listen.to_string(), "127.0.0.1:3001");
    // The listener would be public: the file warns of it, and does not load unchanged.
    let open = converted(&format!("{ONE_WORKER}host: '0.0.0.0'\nport: 3001\n"));
    assert!(
        open.contains("  listen: \"0.0.0.0:3001\"  # others can reach this"),
        "{open}"
    );
    assert!(
        open.contains(&format!("{REFUSED}server.listen\n")),
        "{open}"
    );
    assert_eq!(
        without_counterpart(&converted(&format!("{ONE_WORKER}host: router.local\n"))),
        ["host"]
    );
    let path = &problems(&format!("{ONE_WORKER}port: 70000\n"))[0].path;
    assert_eq!(path, "port");
}

#[test]
#[contract("V44")]
fn clusters_and_the_prefix_memory_are_converted() {
    let text = converted(
        "mode: {type: regular, worker_urls: ['http://a:1', 'http://b:2']}\nsemantic_cluster:\n  embeddings_url: http://e:3\n  \
         embeddings_model: bge\n  embeddings_api_key: sk-secret\n  threshold: 0.8\n  embedding_timeout_ms: 2000\n  clusters:\n    \
         - name: coding\n      examples: ['sort a ${list}', \"say 'no'\"]\n      workers: ['http://b:2']\nshared_prefix_routing: \
         {prefix_chars: 128, ttl_secs: 60, write_probability: 0.5, backend: redis}\n",
    );
    assert_eq!(
        without_counterpart(&text),
        ["shared_prefix_routing.backend"],
        "{text}"
    );
    let ours = settings(&text);
    let key = ours.workers[2].api_key.as_ref();
    assert_eq!(key.map(config::Secret::expose), Some("sk-secret"));
    assert_eq!(
        ours.workers
            .iter()
            .map(|worker| worker.name.as_str())
            .collect::<Vec<_>>(),
        ["a:1", "b:2", "e:3"]
    );
    let clusters = ours.routing.semantic_clusters.expect("enabled");
    assert_eq!(
        (clusters.embedding_model.as_str(), clusters.threshold),
        ("bge", 0.8)
    );
    assert_eq!(clusters.timeout, Duration::from_secs(2));
    assert_eq!(
        clusters.clusters[0].examples,
        ["sort a ${list}", "say 'no'"]
    );
    assert_eq!(clusters.clusters[0].workers, ["b:2"]);
    let prefixes = ours.routing.shared_prefix_routing.expect("enabled");
    assert_eq!(
        (
            prefixes.prefix_chars,
            prefixes.ttl,
            prefixes.write_probability
        ),
        (128, Duration::from_secs(60), 0.5)
    );
}

#[test]
#[contract("V29", "V30")]
fn the_lmcache_policy_keeps_its_controller_and_worker_map() {
    let text = converted(
        "mode: {type: regular, worker_urls: ['http://vllm-1:8000', 'http://vllm-2:8000']}\npolicy:\n  type: lmcache_aware\n  \
         controller_url: http://lmcache:9000\n  poll_interval_secs: 5\n  cache_weight: 0.8\n  fallback_policy: round_robin\n  \
         controller_timeout_ms: 1500\n  lookup_mode: prefix_lookup\n  controller_api_key: sk-mine\n  lmcache_worker_map:\n    \
         vllm-001: http://vllm-1:8000\n    vllm-002: http://vllm-2:8000\nprompt_cache: {backend: memory, ttl_secs: 60, \
         max_entries: 500, redis: {url: 'redis://r'}}\n",
    );
    assert_eq!(without_counterpart(&text), ["prompt_cache.redis"], "{text}");
    let ours = settings(&text).routing;
    assert_eq!(ours.policy().as_str(), "lmcache_aware");
    let lmcache = ours.lmcache.expect("a controller is named");
    assert_eq!(
        (lmcache.mode, lmcache.controller_url.as_str()),
        (LmcacheMode::PrefixLookup, "http://lmcache:9000")
    );
    assert_eq!(
        (lmcache.poll_interval, lmcache.controller_timeout),
        (Duration::from_secs(5), Duration::from_millis(1500))
    );
    assert_eq!(
        (lmcache.cache_weight, lmcache.fallback),
        (0.8, Policy::RoundRobin)
    );
    assert_eq!(
        lmcache
            .controller_api_key
            .as_ref()
            .map(config::Secret::expose),
        Some("sk-mine")
    );
    let map: Vec<_> = lmcache
        .worker_map
        .iter()
        .map(|(instance, worker)| (instance.as_str(), worker.as_str()))
        .collect();
    assert_eq!(
        map,
        [("vllm-001", "vllm-1:8000"), ("vllm-002", "vllm-2:8000")]
    );
    assert_eq!(
        (
            lmcache.prompt_cache.ttl,
            lmcache.prompt_cache.capacity.get()
        ),
        (Duration::from_secs(60), 500)
    );
    // That router has a default address, and accepts fallbacks that are not possible here.
    let text = converted(&format!(
        "{ONE_WORKER}policy: {{type: lmcache_aware, fallback_policy: consistent_hash}}\nprompt_cache: {{max_entries: 500}}\n"
    ));
    assert_eq!(
        without_counterpart(&text),
        ["policy.fallback_policy"],
        "{text}"
    );
    let ours = settings(&text);
    let lmcache = ours.routing.lmcache.expect("a controller is named");
    assert_eq!(
        (lmcache.controller_url.as_str(), lmcache.fallback),
        ("http://localhost:9000", Policy::PowerOfTwo)
    );
    assert_eq!(ours.prompt_cache_redis, None);
}

#[test]
#[contract("V30")]
fn a_prompt_cache_in_redis_stays_in_redis() {
    let shared = |keys: &str| {
        let text = converted(&format!(
            "{ONE_WORKER}policy: {{type: lmcache_aware}}\nprompt_cache: {{backend: redis{keys}}}\n"
        ));
        let redis = settings(&text).prompt_cache_redis;
        (redis.expect("it is chosen"), text)
    };
    let (redis, text) = shared(
        ", redis: {url: 'redis://:h${u}sh@r:6380/2', pool_size: 4, key_prefix: 'x:', connection_timeout_ms: 3000, \
         command_timeout_ms: 500}",
    );
    assert_eq!(
        without_counterpart(&text),
        ["prompt_cache.redis.key_prefix"],
        "{text}"
    );
    assert_eq!(
        (redis.url.host(), redis.url.port(), redis.url.database()),
        ("r", 6380, 2)
    );
    assert_eq!(
        redis.url.password().map(config::Secret::expose),
        Some("h${u}sh")
    );
    assert!(text.contains("# better as ${NAME}"), "{text}");
    assert_eq!(redis.pool_size.get(), 4);
    assert_eq!(
        (redis.connect_timeout, redis.command_timeout),
        (Duration::from_secs(3), Duration::from_millis(500))
    );
    // That router has a default address.
    for keys in ["", ", redis: {}"] {
        let (redis, text) = shared(keys);
        assert_eq!(
            (redis.url.host(), redis.url.port()),
            ("localhost", 6379),
            "{text}"
        );
        assert!(text.contains("# the file names no server"), "{text}");
    }
    let wrong = problems(&format!(
        "{ONE_WORKER}prompt_cache: {{backend: redis, redis: {{url: 'http://:hush@r'}}}}\n"
    ));
    assert_eq!(wrong[0].path, "prompt_cache.redis.url");
    assert!(!wrong[0].to_string().contains("hush"), "{}", wrong[0]);
}

#[test]
fn every_key_without_a_counterpart_is_listed_in_a_comment_in_file_order() {
    let text = converted(
        "log_dir: /tmp\nmode:\n  type: regular\n  worker_urls: ['http://a:1']\n  discovery_address: x\npolicy:\n  type: \
         cache_aware\n  cache_threshold: 0.5\n  block_size: 16\nprefill_policy: {type: manual, seed: 1}\nmodel_path: \
         's3://bucket/llama'\nworker_api_keys: {'http://b:1': sk-secret}\n\"odd\\nworkers\": {}\n",
    );
    assert_eq!(
        without_counterpart(&text),
        [
            "log_dir",
            "mode.discovery_address",
            "policy.cache_threshold",
            "policy.block_size",
            "prefill_policy.type",
            "prefill_policy.seed",
            "model_path",
            "worker_api_keys[\"http://b:1\"]",
            "[\"odd\\nworkers\"]",
        ],
        "{text}"
    );
    assert!(!text.contains("sk-secret"), "{text}");
}

#[test]
fn a_comment_names_exactly_the_keys_that_this_version_rejects() {
    let pools = "mode:\n  type: vllm_prefill_decode\n  prefill_urls: [[http://p:1, 1], [http://p:2, 2]]\n  decode_urls: []\n";
    let more = "policy: {type: lmcache_aware}\nhost: '0.0.0.0'\nprefill_policy: {type: kv_aware, medium_weights: {disk: 0.5}}\n";
    for text in [
        ONE_WORKER.to_owned(),
        SEEDS[0].to_owned(),
        format!("{pools}{more}engine_wait_timeout_secs: 1\n"),
    ] {
        let text = converted(&text);
        let named: Vec<&str> = text
            .lines()
            .find_map(|line| line.strip_prefix(REFUSED))
            .map_or(Vec::new(), |keys| keys.split(", ").collect());
        let mut refused: Vec<String> = Vec::new();
        for problem in load(&text).err().unwrap_or_default() {
            let key = problem.path.replace(['0', '1', '2'], "");
            if !refused.contains(&key) {
                refused.push(key);
            }
        }
        assert_eq!(named, refused, "{text}");
    }
}

#[test]
fn keys_that_only_the_last_of_many_workers_has_are_listed_too() {
    let prefill: String = (1..=300)
        .map(|port| format!("    - http://p:{port}\n"))
        .collect();
    let text = converted(&format!(
        "mode:\n  type: vllm_prefill_decode\n  decode_urls: []\n  prefill_urls:\n{prefill}    - [http://p:301, 8998]\n"
    ));
    let last = "workers:\n  - {url: \"http://p:301\", role: prefill, bootstrap_port: 8998}\n";
    for problem in load(last).err().unwrap_or_default() {
        let key = problem.path.replace('0', "");
        assert!(
            text.lines()
                .any(|line| line.starts_with(REFUSED) && line.contains(&key)),
            "{key}: {text}"
        );
    }
}

#[test]
fn all_wrong_values_are_reported_at_once_with_their_places() {
    let found = problems(
        "\
mode:
  type: vllm_prefill_decode
  prefill_urls:
    - ['unix:///run/a.sock', '80']
    - ['http://p:1']
  decode_urls: [nonsense, 7, 'http://d:0']
decode_policy: {type: kv_aware, block_size: \"16\", speculative_ttl_ms: -1, kv_events: [1]}
prefill_policy: {block_size: 16}
policy: round_robin
model_path: 5
engine_wait_timeout_secs: soon
",
    );
    let places: Vec<_> = found
        .iter()
        .map(|problem| (problem.line.expect("a line"), problem.path.as_str()))
        .collect();
    assert_eq!(
        places,
        [
            (4, "mode.prefill_urls[0][0]"),
            (4, "mode.prefill_urls[0][1]"),
            (5, "mode.prefill_urls[1]"),
            (6, "mode.decode_urls[0]"),
            (6, "mode.decode_urls[1]"),
            (6, "mode.decode_urls[2]"),
            (7, "decode_policy.block_size"),
            (7, "decode_policy.speculative_ttl_ms"),
            (7, "decode_policy.kv_events"),
            (8, "prefill_policy.type"),
            (9, "policy"),
            (10, "model_path"),
            (11, "engine_wait_timeout_secs"),
        ],
        "{}",
        lines(&found)
    );
    assert!(
        found
            .iter()
            .all(|problem| problem.expected.is_some() && problem.column.is_some()),
        "{}",
        lines(&found)
    );
    assert_eq!((&found[6].value, found[6].column), (&"16".into(), Some(45)));
    assert!(found[0].message.contains("a Unix socket"), "{}", found[0]);
}

#[test]
fn a_missing_key_or_a_file_of_another_kind_is_reported_with_the_expected_form() {
    for (text, path, word) in [
        ("", "mode", "missing"),
        ("mode: 5", "mode", "`5`"),
        ("mode: {}", "mode.type", "missing"),
        (
            "mode: {type: regulr, worker_urls: []}",
            "mode.type",
            "`regulr`",
        ),
        ("mode: {type: regular}", "mode.worker_urls", "missing"),
        (
            "mode: {type: regular, worker_urls: 'http://a:1'}",
            "mode.worker_urls",
            "http://a:1",
        ),
        ("- a", "", "a list"),
        ("mode: {type: regular\n", "", "not valid YAML"),
    ] {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{text}: {}", lines(&found));
        assert_eq!(found[0].path, path, "{text}: {}", found[0]);
        assert!(found[0].message.contains(word), "{text}: {}", found[0]);
        assert!(found[0].line.is_some(), "{text}: {}", found[0]);
    }
    let nearest = problems("mode: {type: regulr, worker_urls: []}")[0]
        .nearest
        .clone();
    assert_eq!(nearest.as_deref(), Some("regular"));
}

#[test]
fn a_password_in_a_url_is_in_no_problem() {
    let found = lines(&problems(
        "mode: {type: regular, worker_urls: ['ftp://me:pw@h:1', 'http://me:pw@:1']}",
    ));
    assert!(!found.contains("pw"), "{found}");
}

#[test]
fn two_policies_with_different_values_of_one_key_are_a_problem() {
    let policies =
        "decode_policy: {type: kv_aware, block_size: 32}\nprefill_policy: {type: kv_aware}\n";
    let found = problems(&format!("{ONE_WORKER}{policies}"));
    assert_eq!(found.len(), 1, "{}", lines(&found));
    assert_eq!(
        (found[0].path.as_str(), found[0].line),
        ("decode_policy.block_size", Some(2))
    );
    assert!(
        found[0]
            .message
            .contains("32 here, but 16 by `prefill_policy.block_size`"),
        "{}",
        found[0]
    );
    let twice =
        "mode: {type: regular, worker_urls: [], policy: {type: random}}\npolicy: {type: random}\n";
    let found = problems(twice);
    assert_eq!((found[0].path.as_str(), found[0].line), ("policy", Some(2)));
}

#[test]
fn the_number_of_reported_problems_is_bounded() {
    let urls = "x, ".repeat(1_000);
    let found = problems(&format!("mode: {{type: regular, worker_urls: [{urls}]}}"));
    assert_eq!(found.len(), 201);
    assert_eq!(found[200].message, "and 800 more problems");
}

/// A YAML double-quoted string, which has the form of a JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

proptest! {
    #[test]
    fn any_text_is_converted_or_rejected(text in "(?s).{0,200}") {
        let _ = convert_vllm_router("router.yaml", &text);
    }

    #[test]
    fn a_string_keeps_its_value_in_conversion(topic in "[ -~]{0,20}", model in "/[ -~]{0,20}") {
        let text = converted(&format!(
            "mode: {{type: regular, worker_urls: []}}\npolicy: {{type: kv_aware, kv_events: {{topic_filter: {}}}}}\n\
             model_path: {}\n",
            quoted(&topic),
            quoted(&model)
        ));
        let settings = settings(&text);
        prop_assert_eq!(&settings.kv_events.topic_filter, &topic);
        // The URL of a bucket is not a local path, and the file name is cut off.
        if !model.contains("://") && !model.ends_with("/tokenizer.json") {
            prop_assert_eq!(&settings.models.get("any").tokenizer, &TokenizerSetting::Directory(model.into()));
        }
    }

    #[test]
    fn any_key_without_a_counterpart_is_one_comment_line(key in "(?s)[^\u{0}]{1,40}") {
        let text = format!("{ONE_WORKER}{}: 1\n", quoted(&key));
        if let Ok(text) = convert_vllm_router("router.yaml", &text) {
            prop_assert_eq!(body(&text), body(&converted(ONE_WORKER)));
            prop_assert!(load(&text).is_ok(), "{}", text);
        }
    }
}
