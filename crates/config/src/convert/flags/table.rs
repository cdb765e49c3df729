//! Every flag that has a counterpart. Read from the argument parsers of sglang-router 0.3.2, smg 1.13.0 and vllm-router 0.1.17.

/// A flag without its dashes, and what it means.
#[derive(Debug)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) means: Means,
}

/// What a flag means.
#[derive(Clone, Copy, Debug)]
pub(super) enum Means {
    /// URLs of workers.
    Workers,
    /// Prefill and decode are split.
    Split,
    /// A prefill worker: its URL, and its bootstrap port or `none`.
    Prefill,
    /// A decode worker's URL.
    Decode,
    /// The policy under this key.
    Policy(&'static str),
    /// The value of this key of a file of that router, or of one that stands only here.
    Key(&'static [&'static str]),
    /// A flag without a value: this value of the key.
    Fixed(&'static [&'static str], &'static str),
    /// Pairs of a name and the model it stands for.
    Aliases,
}

const fn flag(name: &'static str, means: Means) -> Flag {
    Flag { name, means }
}

pub(super) const FLAGS: &[Flag] = &[
    flag("worker-urls", Means::Workers),
    flag("pd-disaggregation", Means::Split),
    flag("vllm-pd-disaggregation", Means::Split),
    flag("prefill", Means::Prefill),
    flag("decode", Means::Decode),
    flag("policy", Means::Policy("policy")),
    flag("prefill-policy", Means::Policy("prefill_policy")),
    flag("decode-policy", Means::Policy("decode_policy")),
    flag(
        "lmcache-controller-url",
        Means::Key(&["policy", "controller_url"]),
    ),
    flag(
        "lmcache-poll-interval",
        Means::Key(&["policy", "poll_interval_secs"]),
    ),
    flag(
        "lmcache-cache-weight",
        Means::Key(&["policy", "cache_weight"]),
    ),
    flag(
        "lmcache-lookup-mode",
        Means::Key(&["policy", "lookup_mode"]),
    ),
    flag(
        "lmcache-controller-timeout-ms",
        Means::Key(&["policy", "controller_timeout_ms"]),
    ),
    flag("host", Means::Key(&["host"])),
    flag("port", Means::Key(&["port"])),
    flag("model-path", Means::Key(&["model_path"])),
    flag("tokenizer-path", Means::Key(&["model_path"])),
    flag("chat-template", Means::Key(&["chat_template"])),
    flag("block-size", Means::Key(&["block_size"])),
    flag("kv-event-block-size", Means::Key(&["block_size"])),
    flag("router-temperature", Means::Key(&["temperature"])),
    flag("model-alias", Means::Aliases),
    flag("retry-max-retries", Means::Key(&["retry", "max_retries"])),
    flag(
        "retry-initial-backoff-ms",
        Means::Key(&["retry", "initial_backoff_ms"]),
    ),
    flag(
        "retry-max-backoff-ms",
        Means::Key(&["retry", "max_backoff_ms"]),
    ),
    // What they call retries are sends.
    flag(
        "disable-retries",
        Means::Fixed(&["retry", "max_retries"], "1"),
    ),
    flag(
        "health-check-interval-secs",
        Means::Key(&["health_check", "check_interval_secs"]),
    ),
    flag(
        "health-check-timeout-secs",
        Means::Key(&["health_check", "timeout_secs"]),
    ),
    flag(
        "health-failure-threshold",
        Means::Key(&["health_check", "failure_threshold"]),
    ),
    flag(
        "health-success-threshold",
        Means::Key(&["health_check", "success_threshold"]),
    ),
    flag(
        "health-check-endpoint",
        Means::Key(&["health_check", "endpoint"]),
    ),
    flag(
        "disable-health-check",
        Means::Fixed(&["health_checks_enabled"], "false"),
    ),
    flag(
        "cb-failure-threshold",
        Means::Key(&["cb_failure_threshold"]),
    ),
    flag(
        "cb-timeout-duration-secs",
        Means::Key(&["cb_timeout_duration_secs"]),
    ),
    flag(
        "disable-circuit-breaker",
        Means::Fixed(&["circuit_breaker_enabled"], "false"),
    ),
    flag(
        "request-timeout-secs",
        Means::Key(&["request_timeout_secs"]),
    ),
    flag("max-payload-size", Means::Key(&["max_payload_size"])),
    flag(
        "shutdown-grace-period-secs",
        Means::Key(&["shutdown_grace_period_secs"]),
    ),
    flag(
        "idle-connection-timeout-secs",
        Means::Key(&["idle_connection_timeout_secs"]),
    ),
    flag(
        "header-read-timeout-secs",
        Means::Key(&["header_read_timeout_secs"]),
    ),
    flag("queue-size", Means::Key(&["queue_size"])),
    flag("queue-timeout-secs", Means::Key(&["queue_timeout_secs"])),
    flag("log-level", Means::Key(&["log_level"])),
    flag("log-json", Means::Fixed(&["log_format"], "json")),
];

/// Policies of theirs that are one of ours under another name.
pub(super) const POLICY_NAMES: &[(&str, &str)] = &[
    ("consistent_hashing", "consistent_hash"),
    ("least_load", "least_loaded"),
];
