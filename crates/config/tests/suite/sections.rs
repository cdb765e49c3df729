//! Sections for model names, hooks, model lists and logs.

use std::time::Duration;

use config::{HookErrorAction, LogFormat, LogLevel};
use contract_id::contract;

use crate::sources::{self, settings};

#[test]
#[contract("A13")]
fn a_bare_number_has_the_unit_of_its_key_and_a_duration_names_its_own() {
    let ttl = |text: &str| {
        settings(&format!("kv_cache_index: {{entry_ttl_seconds: {text}}}"))
            .kv_cache_index
            .entry_ttl
    };
    assert_eq!(ttl("60"), Duration::from_secs(60));
    assert_eq!(ttl("60s"), Duration::from_secs(60));
    assert_eq!(ttl("\"5m\""), Duration::from_secs(300));
    let merged = |text: &str| settings(&format!("model_aggregation: {{{text}}}")).model_aggregation;
    assert_eq!(merged("cache_ttl: 60").ttl, merged("cache_ttl: 60s").ttl);
    assert_eq!(merged("cache_ttl: 90s").ttl, Duration::from_secs(90));
    assert_eq!(
        merged("empty_response_base_ttl_seconds: 10s").empty_ttl,
        Duration::from_secs(10)
    );
    let redis = |text: &str| {
        let text = format!(
            "kv_cache_index: {{enabled: true, backend: redis}}\nresponse_cache: {{redis: {{url: \"redis://r\", command_timeout_ms: {text}}}}}\n"
        );
        settings(&text)
            .kv_cache_index
            .redis
            .expect("a server")
            .command_timeout
    };
    assert_eq!(
        (redis("250"), redis("250ms"), redis("2s")),
        (
            Duration::from_millis(250),
            Duration::from_millis(250),
            Duration::from_secs(2)
        )
    );
    for text in ["0", "0s", "1500ms", "\"60\"", "2d", "soon", "-1"] {
        let problem = sources::problem(&format!("kv_cache_index: {{entry_ttl_seconds: {text}}}"));
        assert_eq!(problem.path, "kv_cache_index.entry_ttl_seconds", "{text}");
    }
}

#[test]
#[contract("CH11", "CH13")]
fn model_list_caching_and_deduplication_have_the_documented_defaults() {
    let usual = settings("");
    assert_eq!(usual.cache.model_ttl, Duration::from_secs(300));
    assert_eq!(usual.cache.deduplication(), Some(Duration::from_secs(60)));
    let merged = usual.model_aggregation;
    assert_eq!(
        (merged.ttl, merged.soft_ttl_ratio, merged.max_entries),
        (Duration::from_secs(60), 0.8, 100)
    );
    assert_eq!(
        (merged.empty_ttl, merged.empty_max_ttl),
        (Duration::from_secs(5), Duration::from_secs(60))
    );
    assert_eq!(merged.background(), Some(Duration::from_secs(10)));
    assert_eq!(
        settings("cache: {enable_deduplication: false}")
            .cache
            .deduplication(),
        None
    );
    let off =
        settings("model_aggregation: {background_refresh: {enabled: false}}").model_aggregation;
    assert_eq!(off.background(), None);
    let problem = sources::problem("model_aggregation: {empty_response_base_ttl_seconds: 90}");
    assert_eq!(
        problem.path,
        "model_aggregation.empty_response_base_ttl_seconds"
    );
}

#[test]
#[contract("V44")]
fn a_model_alias_or_rule_resolves_in_one_step() {
    let text = "models:\n  aliases: {gpt-4o: qwen}\n  rules:\n    - {match: \"gpt-*\", rewrite: qwen, fallback: [small]}\n    - {match: big, fallback: [small]}\n";
    let models = settings(text).models;
    assert_eq!(
        models.aliases.get("gpt-4o").map(String::as_str),
        Some("qwen")
    );
    assert_eq!(
        (
            models.rules[0].pattern.as_str(),
            models.rules[0].rewrite.as_deref()
        ),
        ("gpt-*", Some("qwen"))
    );
    assert_eq!(models.rules[1].fallback, ["small"]);
    for (text, path) in [
        ("aliases: {a: b, b: c}", "models.aliases.a"),
        ("aliases: {a: a}", "models.aliases.a"),
        ("aliases: {a: \"\"}", "models.aliases.a"),
        ("rules: [{rewrite: m}]", "models.rules[0].match"),
        ("rules: [{match: m}]", "models.rules[0]"),
        (
            "rules: [{match: m, rewrite: \"n*\"}]",
            "models.rules[0].rewrite",
        ),
        (
            "rules: [{match: m, fallback: [\"\"]}]",
            "models.rules[0].fallback",
        ),
        (
            "rules: [{match: m, rewrites: n, fallback: [o]}]",
            "models.rules[0].rewrites",
        ),
    ] {
        assert_eq!(
            sources::problem(&format!("models: {{{text}}}")).path,
            path,
            "{text}"
        );
    }
}

#[test]
#[contract("V44")]
fn each_hook_is_validated() {
    let text = "pre_routing_hooks:\n  - {name: guard, url: \"http://h:1/check\", timeout: 250ms, on_error: allow, on_reject: {status: 451, message: no}, models: [\"gpt-*\"]}\n  - {name: late, url: \"http://h:2\"}\n";
    let hooks = settings(text).hooks;
    assert_eq!(
        (hooks[0].timeout, hooks[0].on_error),
        (Duration::from_millis(250), HookErrorAction::Allow)
    );
    assert_eq!(
        (
            hooks[0].on_reject.status,
            hooks[0].on_reject.message.as_deref()
        ),
        (451, Some("no"))
    );
    assert_eq!(
        (
            hooks[1].timeout,
            hooks[1].on_error,
            hooks[1].on_reject.status
        ),
        (Duration::from_secs(1), HookErrorAction::Reject, 403)
    );
    for (text, path) in [
        ("{url: \"http://h:1\"}", "name"),
        ("{name: a}", "url"),
        ("{name: a, url: \"ftp://h\"}", "url"),
        ("{name: \"a b\", url: \"http://h:1\"}", "name"),
        (
            "{name: a, url: \"http://h:1\", on_error: ignore}",
            "on_error",
        ),
        (
            "{name: a, url: \"http://h:1\", on_reject: {status: 200}}",
            "on_reject.status",
        ),
    ] {
        let problem = sources::problem(&format!("pre_routing_hooks: [{text}]"));
        assert_eq!(
            problem.path,
            format!("pre_routing_hooks[0].{path}"),
            "{text}"
        );
    }
    let twice = sources::problem(
        "pre_routing_hooks: [{name: a, url: \"http://h:1\"}, {name: a, url: \"http://h:2\"}]",
    );
    assert_eq!(twice.message, "a second hook `a`");
}

#[test]
#[contract("V42")]
fn headers_of_the_other_router_are_off_by_default() {
    let usual = settings("").compat;
    assert!(!usual.vllm_router_headers() && usual.expose_routing_headers);
    let set = settings("compat: {headers: [vllm-router], expose_routing_headers: false}").compat;
    assert!(set.vllm_router_headers() && !set.expose_routing_headers);
}

#[test]
#[contract("DY5", "DY6", "DY7")]
fn predictions_have_the_defaults_of_dynamo() {
    let prediction = settings("").kv_events.prediction;
    assert_eq!(prediction.ttl, Duration::from_secs(120));
    assert_eq!(prediction.max_blocks, 1_048_576);
    assert_eq!(prediction.prune_target_ratio, 0.8);
}

#[test]
#[contract("CH29")]
fn the_log_defaults_to_info_without_colours_and_json_off_a_terminal() {
    let usual = settings("").logging;
    assert_eq!(
        (usual.level, usual.format, usual.enable_colors),
        (LogLevel::Info, LogFormat::Auto, false)
    );
    for (word, level) in [
        ("trace", LogLevel::Trace),
        ("debug", LogLevel::Debug),
        ("info", LogLevel::Info),
        ("warn", LogLevel::Warn),
        ("error", LogLevel::Error),
    ] {
        assert_eq!(
            settings(&format!("logging: {{level: {word}}}"))
                .logging
                .level,
            level
        );
    }
    let set =
        settings("logging: {level: \"info\", format: \"pretty\", enable_colors: true}").logging;
    assert_eq!((set.format, set.enable_colors), (LogFormat::Pretty, true));
    assert_eq!(
        settings("logging: {format: json}").logging.format,
        LogFormat::Json
    );
}
