//! Why keys and flags of other routers have no counterpart.

use settings::shown_text;

use crate::converted_config::without_indices;

/// A key or flag without a counterpart.
#[derive(Debug)]
pub(super) struct UnusedKey {
    pub(super) name: String,
    pub(super) reason: &'static str,
}

/// Reasons by the ends of paths, and by flags with `_` for `-`; the first that fits counts.
pub(super) type Reasons = &'static [(&'static [&'static str], &'static str)];

const UNKNOWN: &str = "the conversion does not know it";

impl UnusedKey {
    /// Returns a flag without a counterpart.
    pub(super) fn of(flag: &str, known: Reasons) -> Self {
        let plain = flag.trim_start_matches("--").replace('-', "_");
        let plain = plain.strip_prefix("router_").unwrap_or(&plain);
        Self {
            name: shown_text(flag),
            reason: reason(known, plain),
        }
    }
}

/// Returns the reason for a path.
pub(super) fn reason(known: Reasons, path: &str) -> &'static str {
    // Names of the user's choice are quoted, at the end of the path.
    let path = path.split("[\"").next().unwrap_or_default();
    let path = without_indices(path).replace("[]", "");
    known
        .iter()
        .find(|(ends, _)| {
            ends.iter().any(|end| {
                path.strip_suffix(end)
                    .is_some_and(|before| before.is_empty() || before.ends_with('.'))
            })
        })
        .map_or(UNKNOWN, |(_, reason)| reason)
}

const SEVERAL_KEYS: &str = "the clients' keys, each with its limits, are entries of tenants.api_keys here: docs/tenants.md";

/// Of vLLM Router, sglang-router and smg.
pub(super) const VLLM_ROUTER: Reasons = &[
    (
        &["inbound_api_key"],
        "the key of clients is in no file: --api-key or WARMROUTE_API_KEY",
    ),
    (
        &["admin_api_key"],
        "the key of operators is in a file of its own: admin.token_file",
    ),
    (
        &["api_key"],
        "a command line should hold no secret: workers[].api_key is the key that engines get",
    ),
    (
        &["embeddings_api_key"],
        "the embedding server is a worker with another key",
    ),
    (&["worker_api_keys"], "no worker has this URL"),
    (
        &[
            "discovery",
            "discovery_address",
            "vllm_discovery_address",
            "service_discovery",
            "service_discovery_port",
            "service_discovery_namespace",
            "selector",
            "prefill_selector",
            "decode_selector",
        ],
        "workers come from workers, discovery.file, discovery.dns or the admin API",
    ),
    (
        &["prometheus_duration_buckets"],
        "histograms have fixed buckets",
    ),
    (&["log_dir"], "the log goes to stderr"),
    (&["host"], "names are not resolved: write an address"),
    (
        &["request_id_headers"],
        "the request id is in x-request-id only",
    ),
    (
        &["max_concurrent_requests", "rate_limit_tokens_per_second"],
        "bytes and the queue bound requests, not their number: server.max_held_bytes, queue",
    ),
    (
        &["cors_allowed_origins"],
        "list them in server.allowed_origins, which also admits their pages where no key is needed",
    ),
    (
        &["backoff_multiplier", "retry_backoff_multiplier"],
        "delays double: retry.exponential_backoff",
    ),
    (
        &["jitter_factor", "retry_jitter_factor"],
        "the share of jitter is fixed: retry.jitter",
    ),
    (
        &["success_threshold", "cb_success_threshold"],
        "a worker gets requests again after circuit_breaker.ejection",
    ),
    (
        &["window_duration_secs", "cb_window_duration_secs"],
        "consecutive failures count, not those of a window",
    ),
    (
        &[
            "worker_startup_timeout_secs",
            "worker_startup_check_interval_secs",
            "worker_startup_check_interval",
        ],
        "the router starts without waiting, and a worker gets requests once a check succeeds",
    ),
    (
        &["enable_igw"],
        "requests always go to workers of their model",
    ),
    (
        &["tokenizer_model_map"],
        "models.entries has whole names of models",
    ),
    (&["history_backend"], "the engine stores responses"),
    (
        &["enable_profiling", "profile_timeout_secs", "profile"],
        "control routes of engines are not forwarded",
    ),
    (&["connection_mode"], "workers are called over HTTP"),
    (
        &["dp_aware"],
        "ranks are found by probing: workers[].dp_ranks",
    ),
    (
        &["backend", "runtime"],
        "each router has its own memory, and the type of a worker is found by probing",
    ),
    (
        &["tls_cert_path", "tls_key_path"],
        "set server.tls.cert and server.tls.key",
    ),
    (
        &["reasoning_parser", "tool_call_parser"],
        "the engine parses replies",
    ),
    (
        &[
            "cache_threshold",
            "balance_abs_threshold",
            "balance_rel_threshold",
            "eviction_interval_secs",
            "eviction_interval",
            "max_tree_size",
        ],
        "cache_aware reads the block index, which has neither thresholds nor a tree",
    ),
    (
        &["load_check_interval_secs"],
        "each request counts at once as load",
    ),
    (
        &["fallback_policy"],
        "the fallback cannot be a policy that needs a key of the request",
    ),
    (
        &[
            "policy",
            "policy.type",
            "prefill_policy",
            "prefill_policy.type",
            "decode_policy",
            "decode_policy.type",
        ],
        "no policy has this name",
    ),
    (
        &["model_path", "tokenizer_path"],
        "it is neither a directory nor a model of a hub: models.defaults.tokenizer",
    ),
    (
        &["prompt_cache.redis.key_prefix"],
        "tokens of prompts always have cr:tok:",
    ),
    (&["redis"], "the backend is memory"),
    (
        &["transform"],
        "an answer of a hook may always transform the body",
    ),
];

/// Of Continuum Router.
pub(super) const CONTINUUM: Reasons = &[
    (
        &["global_prompts", "prompts"],
        "declined (docs/compat.md): a hook can transform prompts",
    ),
    (
        &["files", "files_api"],
        "declined (docs/compat.md): requests contain their content",
    ),
    (&["api_keys", "rate_limiting", "rate_limit"], SEVERAL_KEYS),
    (
        &["tracing.enabled"],
        "traces are exported where tracing.otlp_endpoint is set",
    ),
    (
        &["admin.auth", "admin.method", "admin.token"],
        "the key of operators is in a file of its own: admin.token_file",
    ),
    (
        &["admin.stats", "stats", "metrics_history"],
        "declined (docs/compat.md): Prometheus stores the history of metrics",
    ),
    (&["webui", "web_ui"], "there is no web interface"),
    (
        &["cors"],
        "list them in server.allowed_origins, which also admits their pages where no key is needed",
    ),
    (
        &["model_metadata_file", "model_configs"],
        "models are described as their engines describe them",
    ),
    (
        &["connection_pool_size"],
        "connections are opened on demand",
    ),
    (&["retry_override"], "retry is one for all workers"),
    (&["fallback"], "chains of models are in models.rules"),
    (&["timeouts"], "time limits are in request"),
    (
        &["selection_strategy"],
        "prefix routing is on, and this strategy cannot place a request without a prefix: see routing.fallback",
    ),
    (
        &["load_balancer"],
        "only its strategy has a counterpart, as routing.policy or routing.fallback",
    ),
];

#[cfg(test)]
mod tests {
    use super::{UNKNOWN, UnusedKey, VLLM_ROUTER, reason};

    #[test]
    fn a_reason_is_found_by_the_end_of_a_path_and_by_a_flag() {
        for (path, part) in [
            ("log_dir", "stderr"),
            ("mode.prefill_policy.cache_threshold", "block index"),
            ("pre_routing_hooks[12].transform", "hook"),
            ("worker_api_keys[\"http://[::1]:1\"]", "URL"),
            ("my_log_dir", UNKNOWN),
            ("", UNKNOWN),
        ] {
            assert!(reason(VLLM_ROUTER, path).contains(part), "{path}");
        }
        for flag in ["--log-dir", "--router-log-dir"] {
            let unused = UnusedKey::of(flag, VLLM_ROUTER);
            assert!(unused.reason.contains("stderr"), "{flag}");
            assert_eq!(unused.name, flag);
        }
    }
}
