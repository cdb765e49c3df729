//! Conversion of other routers' command lines, and of Continuum Router's files.

use std::time::Duration;

use config::{LogFormat, LogLevel};
use config_convert::{SourceRouter, convert_command, convert_continuum};
use contract_id::contract;
use kv_blocks::Role;
use proptest::prelude::*;
use routing::{LmcacheMode, Policy};

use crate::sources::{lines, load_all, settings};

fn converted(router: SourceRouter, command: &str) -> String {
    convert_command(router, "flags", command)
        .unwrap_or_else(|problems| panic!("{command}\n{}", lines(&problems)))
}

fn without_counterpart(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("# no counterpart: "))
        .collect()
}

#[test]
fn a_command_line_of_sglang_router_becomes_workers_policy_and_limits() {
    let text = converted(
        SourceRouter::Smg,
        "python -m sglang_router.launch_router --worker-urls http://a:8000 http://b:8000 --policy cache_aware \
         --cache-threshold 0.5 --balance-abs-threshold=32 --host 127.0.0.1 --port 30001 --request-timeout-secs 600 \
         --retry-max-retries 5 --retry-initial-backoff-ms 50 --cb-failure-threshold 10 --queue-size 100 \
         --queue-timeout-secs 60 --max-payload-size 1048576 --log-level warn --log-json --disable-health-check \
         --shutdown-grace-period-secs 180 --api-key sk-hush --dp-aware",
    );
    assert_eq!(
        without_counterpart(&text),
        [
            "--cache-threshold",
            "--balance-abs-threshold",
            "--api-key",
            "--dp-aware"
        ]
    );
    assert!(!text.contains("sk-hush"), "{text}");
    let ours = settings(&text);
    let urls: Vec<_> = ours
        .workers
        .iter()
        .map(|worker| worker.url.as_str())
        .collect();
    assert_eq!(urls, ["http://a:8000", "http://b:8000"]);
    assert_eq!(ours.routing.policy().as_str(), "cache_aware");
    assert_eq!(ours.server.listen.to_string(), "127.0.0.1:30001");
    assert_eq!(ours.server.max_body_bytes, 1 << 20);
    assert_eq!(ours.server.drain_timeout, Duration::from_secs(180));
    assert_eq!(ours.request.timeout, Duration::from_secs(600));
    assert_eq!(
        (ours.retry.max_attempts.get(), ours.retry.base_delay),
        (5, Duration::from_millis(50))
    );
    assert_eq!(ours.circuit_breaker.consecutive_failures.get(), 10);
    assert_eq!(
        (ours.queue.max_entries, ours.queue.wait),
        (100, Duration::from_secs(60))
    );
    assert_eq!(
        (ours.logging.level, ours.logging.format),
        (LogLevel::Warn, LogFormat::Json)
    );
    assert!(!ours.health_checks.enabled);
}

#[test]
#[contract("V29")]
fn flags_of_the_lmcache_policy_become_its_keys() {
    let ours = settings(&converted(
        SourceRouter::VllmRouter,
        "vllm-router --policy lmcache_aware --lmcache-controller-url http://lmcache:9000 --lmcache-poll-interval 20 \
         --lmcache-cache-weight 0.5 --lmcache-lookup-mode prefix_lookup --lmcache-controller-timeout-ms 500 \
         --worker-urls http://a:8000 http://b:8000",
    ));
    let lmcache = ours
        .routing
        .lmcache
        .as_ref()
        .expect("a controller is named");
    assert_eq!(
        (ours.routing.policy().as_str(), lmcache.mode),
        ("lmcache_aware", LmcacheMode::PrefixLookup)
    );
    assert_eq!(
        (lmcache.poll_interval, lmcache.controller_timeout),
        (Duration::from_secs(20), Duration::from_millis(500))
    );
    assert_eq!(
        (lmcache.controller_url.as_str(), lmcache.cache_weight),
        ("http://lmcache:9000", 0.5)
    );
}

#[test]
fn pools_of_either_router_keep_their_roles_and_bootstrap_ports() {
    let smg = "smg launch --pd-disaggregation --prefill http://p1:1 8998 --prefill http://p2:1 none --decode http://d:1 \
               --prefill-policy consistent_hashing --decode-policy least_load";
    let ours = settings(&converted(SourceRouter::Smg, smg));
    let roles: Vec<_> = ours
        .workers
        .iter()
        .map(|worker| {
            (
                worker.role,
                worker.bootstrap_port.map(std::num::NonZero::get),
            )
        })
        .collect();
    assert_eq!(
        roles,
        [
            (Role::Prefill, Some(8998)),
            (Role::Prefill, None),
            (Role::Decode, None)
        ]
    );
    assert_eq!(ours.routing.prefill_policy, Some(Policy::ConsistentHash));
    assert_eq!(ours.routing.decode_policy, Some(Policy::LeastLoaded));
    assert_eq!(ours.disaggregation.connector, config::Connector::Sglang);
    let vllm = "vllm-router --vllm-pd-disaggregation --prefill http://p:1 --decode http://d:1 --router-temperature 0.5";
    let ours = settings(&converted(SourceRouter::VllmRouter, vllm));
    assert_eq!(ours.disaggregation.connector, config::Connector::Nixl);
    assert_eq!(ours.routing.temperature, 0.5);
}

#[test]
fn a_missing_flag_converts_to_the_source_routers_default() {
    let ours = settings(&converted(SourceRouter::Smg, "--worker-urls http://a:1"));
    assert_eq!(
        (
            ours.routing.policy().as_str(),
            ours.server.listen.to_string().as_str()
        ),
        ("cache_aware", "127.0.0.1:30000")
    );
    // Discovery may provide the workers: the file states that it has none.
    let none = converted(
        SourceRouter::Smg,
        "smg launch --service-discovery --selector app=vllm",
    );
    assert_eq!(
        without_counterpart(&none),
        ["--service-discovery", "--selector"]
    );
    assert!(
        settings(&none).workers.is_empty() && none.contains("workers: []\n"),
        "{none}"
    );
}

#[test]
fn a_policy_without_a_counterpart_keeps_the_default_and_its_flag_is_listed() {
    let text = converted(
        SourceRouter::Smg,
        "--worker-urls http://a:1 --policy manual",
    );
    assert_eq!(without_counterpart(&text), ["--policy"]);
    assert_eq!(settings(&text).routing.policy().as_str(), "warm");
}

#[test]
fn model_aliases_are_converted() {
    let text = converted(
        SourceRouter::Smg,
        "--worker-urls http://a:1 --model-alias gpt-4o=qwen --model-alias 'b c=m'",
    );
    let aliases = settings(&text).models.aliases;
    assert_eq!(aliases.get("gpt-4o").map(String::as_str), Some("qwen"));
    assert_eq!(aliases.get("b c").map(String::as_str), Some("m"));
}

#[test]
fn all_wrong_values_are_reported_at_once_by_flag() {
    let command = "--worker-urls nonsense --port 70000 --queue-size many --prefill-policy";
    let problems = convert_command(SourceRouter::Smg, "flags", command).expect_err("wrong");
    assert!(
        problems[0]
            .to_string()
            .starts_with("--prefill-policy: the flag has no value"),
        "{}",
        lines(&problems)
    );
    let command = "--worker-urls nonsense --port 70000 --queue-size many";
    let problems = convert_command(SourceRouter::Smg, "flags", command).expect_err("wrong");
    let told: Vec<_> = problems
        .iter()
        .map(|problem| problem.source.as_str())
        .collect();
    for flag in ["--worker-urls", "--port", "--queue-size"] {
        assert!(told.contains(&flag), "{flag}: {}", lines(&problems));
    }
}

#[test]
fn a_continuum_file_keeps_its_keys_and_lists_those_without_a_counterpart() {
    let theirs = "server:\n  bind_address: \"127.0.0.1:8081\"\n  workers: 4\n  cors: {enabled: true}\nselection_strategy: RoundRobin\n\
                  backends:\n  - {name: a, url: \"http://a:1\", weight: 2, max_tokens: 5}\n  - {name: b, url: \"http://${HOST}:1\", api_key: \"${KEY}\"}\n\
                  cache:\n  model_cache_ttl: \"300s\"\nrate_limiting: {storage: memory}\nresponse_cache: {enabled: true, ttl: 10m}\n";
    let text = convert_continuum("config.yaml", theirs)
        .unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    assert_eq!(
        without_counterpart(&text),
        ["server.cors", "backends[0].max_tokens", "rate_limiting"]
    );
    let env = [("HOST", "b"), ("KEY", "sk")];
    let ours = load_all(&text, &env, &[])
        .unwrap_or_else(|problems| panic!("{text}\n{}", lines(&problems)));
    assert_eq!(
        (
            ours.server.listen.to_string().as_str(),
            ours.routing.policy().as_str()
        ),
        ("127.0.0.1:8081", "round_robin")
    );
    assert_eq!(
        ours.server.runtime_threads.map(std::num::NonZeroU32::get),
        Some(4)
    );
    assert_eq!(ours.workers[1].url, "http://b:1");
    assert_eq!(ours.workers[0].weight, 2.0);
}

#[test]
fn every_continuum_example_is_unchanged_by_conversion() {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/seed-configs"
    );
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("the folder of fixtures") {
        let path = entry.expect("an entry").path();
        let name = path.display().to_string();
        if !name.contains("continuum-") {
            continue;
        }
        seen += 1;
        let theirs = std::fs::read_to_string(&path).expect("a text");
        let ours = convert_continuum(&name, &theirs)
            .unwrap_or_else(|problems| panic!("{}", lines(&problems)));
        assert!(without_counterpart(&ours).is_empty(), "{ours}");
        let env = [("S3_ACCESS_KEY", "a"), ("S3_SECRET_KEY", "b")];
        let workers = [
            ("workers", "vllm-1=http://x:1", "-w"),
            ("workers", "vllm-2=http://x:2", "-w"),
        ];
        let flags: &[_] = if theirs.contains("backends:") {
            &[]
        } else {
            &workers
        };
        let shown = |text: &str| {
            load_all(text, &env, flags)
                .unwrap_or_else(|p| panic!("{text}\n{}", lines(&p)))
                .to_yaml()
        };
        assert_eq!(shown(&ours), shown(&theirs), "{name}");
    }
    assert_eq!(seen, 22, "the documents have 22 blocks");
}

proptest! {
    #[test]
    fn any_command_line_and_any_file_is_converted_or_rejected(words in prop::collection::vec("(--[a-z-]{1,12}|--policy|--prefill|--model-alias|[ -~]{0,12})", 0..12), text in "[ -~\n]{0,200}") {
        if let Ok(text) = convert_command(SourceRouter::Smg, "flags", &words.join(" ")) {
            prop_assert!(text.starts_with("# Converted"));
        }
        let _ = convert_continuum("f", &text);
    }
}
