//! Every flag that has a counterpart. Source: the argument parsers of sglang-router 0.3.2, smg
//! 1.13.0 and vllm-router 0.1.17.

/// A flag without its dashes, and its meaning.
#[derive(Debug)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) means: FlagMeaning,
}

/// Meaning of a flag.
#[derive(Clone, Copy, Debug)]
pub(super) enum FlagMeaning {
    /// URLs of workers.
    Workers,
    /// Separates prefill and decode.
    Split,
    /// A prefill worker: its URL, and its bootstrap port or `none`.
    Prefill,
    /// A decode worker's URL.
    Decode,
    /// The policy under this key.
    Policy(&'static str),
    /// The value of this key of that router's file, or of a key that exists only here.
    Key(&'static [&'static str]),
    /// A flag without a value: this value of the key.
    Fixed(&'static [&'static str], &'static str),
    /// Pairs of a name and the model it stands for.
    Aliases,
}

const fn flag(name: &'static str, means: FlagMeaning) -> Flag {
    Flag { name, means }
}

pub(super) const FLAGS: &[Flag] = &[
    flag("worker-urls", FlagMeaning::Workers),
    flag("pd-disaggregation", FlagMeaning::Split),
    flag("vllm-pd-disaggregation", FlagMeaning::Split),
    flag("prefill", FlagMeaning::Prefill),
    flag("decode", FlagMeaning::Decode),
    flag("policy", FlagMeaning::Policy("policy")),
    flag("prefill-policy", FlagMeaning::Policy("prefill_policy")),
    flag("decode-policy", FlagMeaning::Policy("decode_policy")),
    flag(
        "lmcache-controller-url",
        FlagMeaning::Key(&["policy", "controller_url"]),
    ),
    flag(
        "lmcache-poll-interval",
        FlagMeaning::Key(&["policy", "poll_interval_secs"]),
    ),
    flag(
        "lmcache-cache-weight",
        FlagMeaning::Key(&["policy", "cache_weight"]),
    ),
    flag(
        "lmcache-lookup-mode",
        FlagMeaning::Key(&["policy", "lookup_mode"]),
    ),
    flag(
        "lmcache-controller-timeout-ms",
        FlagMeaning::Key(&["policy", "controller_timeout_ms"]),
    ),
    flag("host", FlagMeaning::Key(&["host"])),
    flag("port", FlagMeaning::Key(&["port"])),
    flag("prometheus-host", FlagMeaning::Key(&["metrics", "host"])),
    flag("prometheus-port", FlagMeaning::Key(&["metrics", "port"])),
    flag("model-path", FlagMeaning::Key(&["model_path"])),
    flag("tokenizer-path", FlagMeaning::Key(&["tokenizer_path"])),
    flag("chat-template", FlagMeaning::Key(&["chat_template"])),
    flag("block-size", FlagMeaning::Key(&["block_size"])),
    flag("kv-event-block-size", FlagMeaning::Key(&["block_size"])),
    flag("router-temperature", FlagMeaning::Key(&["temperature"])),
    flag("model-alias", FlagMeaning::Aliases),
    flag(
        "retry-max-retries",
        FlagMeaning::Key(&["retry", "max_retries"]),
    ),
    flag(
        "retry-initial-backoff-ms",
        FlagMeaning::Key(&["retry", "initial_backoff_ms"]),
    ),
    flag(
        "retry-max-backoff-ms",
        FlagMeaning::Key(&["retry", "max_backoff_ms"]),
    ),
    // Their "retries" count attempts.
    flag(
        "disable-retries",
        FlagMeaning::Fixed(&["retry", "max_retries"], "1"),
    ),
    flag(
        "health-check-interval-secs",
        FlagMeaning::Key(&["health_check", "check_interval_secs"]),
    ),
    flag(
        "health-check-timeout-secs",
        FlagMeaning::Key(&["health_check", "timeout_secs"]),
    ),
    flag(
        "health-failure-threshold",
        FlagMeaning::Key(&["health_check", "failure_threshold"]),
    ),
    flag(
        "health-success-threshold",
        FlagMeaning::Key(&["health_check", "success_threshold"]),
    ),
    flag(
        "health-check-endpoint",
        FlagMeaning::Key(&["health_check", "endpoint"]),
    ),
    flag(
        "disable-health-check",
        FlagMeaning::Fixed(&["health_checks_enabled"], "false"),
    ),
    flag(
        "cb-failure-threshold",
        FlagMeaning::Key(&["circuit_breaker", "failure_threshold"]),
    ),
    flag(
        "cb-timeout-duration-secs",
        FlagMeaning::Key(&["circuit_breaker", "timeout_duration_secs"]),
    ),
    flag(
        "disable-circuit-breaker",
        FlagMeaning::Fixed(&["disable_circuit_breaker"], "true"),
    ),
    flag(
        "request-timeout-secs",
        FlagMeaning::Key(&["request_timeout_secs"]),
    ),
    flag("max-payload-size", FlagMeaning::Key(&["max_payload_size"])),
    flag(
        "shutdown-grace-period-secs",
        FlagMeaning::Key(&["shutdown_grace_period_secs"]),
    ),
    flag(
        "idle-connection-timeout-secs",
        FlagMeaning::Key(&["idle_connection_timeout_secs"]),
    ),
    flag(
        "header-read-timeout-secs",
        FlagMeaning::Key(&["header_read_timeout_secs"]),
    ),
    flag("queue-size", FlagMeaning::Key(&["queue_size"])),
    flag(
        "queue-timeout-secs",
        FlagMeaning::Key(&["queue_timeout_secs"]),
    ),
    flag(
        "semantic-cache-embeddings-url",
        FlagMeaning::Key(&["semantic_cache", "embeddings_url"]),
    ),
    flag(
        "semantic-cache-embeddings-model",
        FlagMeaning::Key(&["semantic_cache", "embeddings_model"]),
    ),
    flag(
        "semantic-cache-threshold",
        FlagMeaning::Key(&["semantic_cache", "threshold"]),
    ),
    flag(
        "semantic-cache-max-entries",
        FlagMeaning::Key(&["semantic_cache", "max_entries"]),
    ),
    flag(
        "semantic-cache-ttl-secs",
        FlagMeaning::Key(&["semantic_cache", "ttl_secs"]),
    ),
    flag(
        "semantic-cache-embedding-timeout-ms",
        FlagMeaning::Key(&["semantic_cache", "embedding_timeout_ms"]),
    ),
    flag(
        "intra-node-data-parallel-size",
        FlagMeaning::Key(&["intra_node_data_parallel_size"]),
    ),
    flag(
        "enable-trace",
        FlagMeaning::Fixed(&["trace_config", "enable_trace"], "true"),
    ),
    flag(
        "otlp-traces-endpoint",
        FlagMeaning::Key(&["trace_config", "otlp_traces_endpoint"]),
    ),
    flag("log-level", FlagMeaning::Key(&["log_level"])),
    flag("log-json", FlagMeaning::Fixed(&["log_format"], "json")),
];

/// Policies of theirs that have another name here.
pub(super) const POLICY_NAMES: &[(&str, &str)] = &[
    ("consistent_hashing", "consistent_hash"),
    ("least_load", "least_loaded"),
];
