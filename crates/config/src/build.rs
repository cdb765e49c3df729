//! Builds [`Settings`] from the checked tree: only relations between keys are checked here.

mod cache;
mod content_routing;
mod disaggregation;
mod discovery;
mod hooks;
mod kv;
mod lmcache;
mod models;
mod redis;
mod response_cache;
mod routing;
mod server;
mod tls;
mod worker_events;
mod workers;

use crate::{
    AdminSection, CircuitBreakerSection, CompatSection, DecisionLogSection, DecisionsSection,
    HealthChecksSection, ListenSetting, LogFormat, LogLevel, LoggingSection, MetricsSection,
    ParitySection, PrefixRoutingSection, QueueSection, ReplicasSection, RequestSection,
    RetrySection, ServerSection, Settings,
    checked_value::{CheckedValue, Value},
    origins::ValueOrigins,
    problem::ProblemDraft,
};

/// Policy if no key sets one.
const DEFAULT_POLICY: &str = "warm";

/// Builds the settings; problems between keys are recorded. `file` is the file's name in problems.
pub(crate) fn build(
    root: &mut CheckedValue,
    file: &str,
    problems: &mut Vec<ProblemDraft>,
) -> Settings {
    let workers = workers::workers(root, problems);
    resolve(root);
    listeners_are_safe(root, problems);
    tls::listeners_are_whole(root, problems);
    parity_ratios_are_in_order(root, problems);
    server::check_body_fits(root.key("server"), problems);
    kv::check_weights_sum(root.key("kv_cache_index").key("scoring"), problems);
    let kv_cache_index = kv::kv_cache_index(root, &workers, problems);
    let response_cache = response_cache::response_cache(root, problems);
    let routing = routing::routing(root, &workers, problems);
    let discovery = discovery::discovery(root.key("discovery"), problems);
    discovery::hide_keys(root.key_mut("discovery"));
    let models = models::models(root.key("models"), problems);
    let model_aggregation = cache::model_aggregation(root.key("model_aggregation"), problems);
    let hooks = hooks::hooks(root.key("pre_routing_hooks"), problems);
    let section = |name: &str| root.key(name);
    Settings {
        server: server(section("server")),
        admin: admin(section("admin")),
        workers,
        discovery,
        models,
        routing,
        disaggregation: disaggregation::disaggregation(section("disaggregation")),
        prefix_routing: prefix_routing(section("prefix_routing")),
        kv_events: kv::kv_events(section("kv_events")),
        kv_cache_index,
        response_cache,
        cache: cache::cache(section("cache")),
        model_aggregation,
        parity: parity(section("parity")),
        health_checks: health_checks(section("health_checks")),
        queue: queue(section("queue")),
        request: request(section("request")),
        retry: retry(section("retry")),
        circuit_breaker: circuit_breaker(section("circuit_breaker")),
        hooks,
        replicas: ReplicasSection {
            reset_states: section("replicas").key("reset_states").bool(),
        },
        logging: logging(section("logging")),
        metrics: metrics(section("metrics")),
        decisions: decisions(section("decisions")),
        compat: compat(section("compat")),
        idle: Vec::new(),
        passed_over: Vec::new(),
        effective: root.shown(),
        origins: ValueOrigins::of(root, file),
    }
}

/// Fills in values that follow from other keys, so that the effective configuration shows the
/// values in use.
fn resolve(root: &mut CheckedValue) {
    let server = root.key_mut("server");
    let port = server
        .key("port")
        .int_or_word()
        .and_then(|port| u16::try_from(port).ok());
    if let (Some(port), Value::Listen(ListenSetting::Tcp(address))) =
        (port, &mut server.key_mut("listen").value)
    {
        address.set_port(port);
    }
    let by_prefix = ["prefix_routing", "kv_cache_index"]
        .iter()
        .any(|section| root.key(section).key("enabled").bool());
    let policy = &mut root.key_mut("routing").key_mut("policy").value;
    if *policy == Value::Unset {
        *policy = Value::Word(if by_prefix {
            "continuum"
        } else {
            DEFAULT_POLICY
        });
    }
    // If caches do not count, their content is not needed.
    if !routing::caches_count(root.key("routing")) {
        root.key_mut("kv_events").key_mut("enabled").value = Value::Bool(false);
    }
    let request = root.key("request");
    let retries = request.key("max_retries").int();
    let own_delay = request.key("retry_delay").clone();
    let retry = root.key_mut("retry");
    // Attempts = min(retry.max_attempts, 1 + request.max_retries).
    let attempts = retry.key("max_attempts").int().min(1 + retries);
    retry.key_mut("max_attempts").value = Value::Int(attempts);
    if own_delay.is_set() && !retry.key("base_delay").is_set() {
        retry.key_mut("base_delay").value = own_delay.value;
    }
}

/// Locates a problem at a key, or at the enclosing section if the key is left out.
fn problem_at(draft: ProblemDraft, key: &CheckedValue, around: &CheckedValue) -> ProblemDraft {
    match key.origin.as_ref().or(around.origin.as_ref()) {
        Some(origin) => draft.at(origin.clone()),
        None => draft,
    }
}

/// Checks that a listener open to other machines was configured so explicitly.
fn listeners_are_safe(root: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let exposed = |listen: &CheckedValue| !listen.failed && !listen.listen().is_local();
    let file = |path: &str, listen: &CheckedValue, message: &str, expected: &str| {
        let draft =
            ProblemDraft::new(path, format!("{} {message}", listen.listen())).expected(expected);
        let draft = draft.value(listen.shown()).in_context();
        match &listen.origin {
            Some(origin) => draft.at(origin.clone()),
            None => draft,
        }
    };
    let (server, admin) = (root.key("server"), root.key("admin"));
    let (data, own) = (server.key("listen"), admin.key("listen"));
    let open = server.key("insecure_open");
    for place in std::iter::once(data).chain(server.key("also_listen").items()) {
        if exposed(place) && !open.bool() && !open.failed && !tls::knows_its_clients(server) {
            problems.push(file(
                if std::ptr::eq(place, data) { "server.listen" } else { "server.also_listen" },
                place,
                "can be reached from other machines and no API key protects it",
                "a loopback address, or `server.insecure_open: true` (--insecure-open) to serve everyone",
            ));
        }
    }
    let token = admin.key("token_file");
    if exposed(own) && !token.is_set() && !tls::knows_its_clients(admin) {
        problems.push(file(
            "admin.listen",
            own,
            "can be reached from other machines and no token protects it",
            "a loopback address, or `admin.token_file` (--admin-token-file)",
        ));
    }
    let any_port = matches!(data.listen(), ListenSetting::Tcp(address) if address.port() == 0);
    if data.listen() == own.listen() && !any_port && !data.failed && !own.failed {
        problems.push(file(
            "admin.listen",
            own,
            "is also `server.listen`",
            "another port",
        ));
    }
}

/// Checks the order of the ratios: `downgrade_ratio` is at least `drift_ratio`, which is at least
/// `recover_ratio`.
fn parity_ratios_are_in_order(root: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let section = root.key("parity");
    for (upper, lower) in [
        ("downgrade_ratio", "drift_ratio"),
        ("drift_ratio", "recover_ratio"),
    ] {
        let (high, low) = (section.key(upper), section.key(lower));
        if high.failed || low.failed || high.float() >= low.float() {
            continue;
        }
        // The problem is at the key that was set; if both were, at the upper one.
        let (name, set) = if high.is_set() {
            (upper, high)
        } else {
            (lower, low)
        };
        let message = format!(
            "parity.{upper} {} is below parity.{lower} {}",
            high.float(),
            low.float()
        );
        let draft = ProblemDraft::new(format!("parity.{name}"), message)
            .value(set.shown())
            .in_context();
        let draft = draft.expected("downgrade_ratio >= drift_ratio >= recover_ratio");
        problems.push(match &set.origin {
            Some(origin) => draft.at(origin.clone()),
            None => draft,
        });
    }
}

fn server(section: &CheckedValue) -> ServerSection {
    ServerSection {
        listen: section.key("listen").listen().clone(),
        also_listen: section
            .key("also_listen")
            .items()
            .iter()
            .map(|place| place.listen().clone())
            .collect(),
        probe_listen: section.key("probe_listen").listen_if_set().cloned(),
        tls: tls::listener(section.key("tls")),
        insecure_open: section.key("insecure_open").bool(),
        max_head_bytes: section.key("max_head_bytes").size_in_memory(),
        max_body_bytes: section.key("max_body_bytes").size_in_memory(),
        max_held_bytes: section.key("max_held_bytes").size(),
        max_choices: section.key("max_choices").int(),
        max_prompts: section.key("max_prompts").int(),
        max_stop: section.key("max_stop").int(),
        memory_budget: server::memory_budget(section.key("memory_budget")),
        max_connections: section.key("max_connections").count_or_word(),
        keep_alive: section.key("keep_alive").duration(),
        head_timeout: section.key("head_timeout").duration(),
        body_timeout: section.key("body_timeout").duration(),
        half_close: section.key("half_close").bool(),
        drain_timeout: section.key("drain_timeout").duration(),
        drain_grace: section.key("drain_grace").duration(),
        runtime_threads: section.key("runtime_threads").count_or_word(),
    }
}

fn admin(section: &CheckedValue) -> AdminSection {
    AdminSection {
        listen: section.key("listen").listen().clone(),
        tls: tls::listener(section.key("tls")),
        token_file: section.key("token_file").text().map(Into::into),
        dashboard: section.key("dashboard").bool(),
    }
}

fn prefix_routing(section: &CheckedValue) -> PrefixRoutingSection {
    PrefixRoutingSection {
        enabled: section.key("enabled").bool(),
        max_prefix_length: usize::try_from(section.key("max_prefix_length").int())
            .unwrap_or(usize::MAX),
        load_factor_epsilon: section.key("load_factor_epsilon").float(),
        virtual_nodes: section.key("virtual_nodes").count().get(),
        anthropic_cache_control_injection: section.key("anthropic_cache_control_injection").bool(),
        strip_volatile_prefix: section.key("strip_volatile_prefix").bool(),
    }
}

fn parity(section: &CheckedValue) -> ParitySection {
    ParitySection {
        window: section.key("window").duration(),
        min_joined: usize::try_from(section.key("min_joined").int()).unwrap_or(usize::MAX),
        drift_ratio: section.key("drift_ratio").float(),
        downgrade_ratio: section.key("downgrade_ratio").float(),
        recover_ratio: section.key("recover_ratio").float(),
    }
}

fn health_checks(section: &CheckedValue) -> HealthChecksSection {
    let first = section.key("recovery_interval").duration();
    HealthChecksSection {
        enabled: section.key("enabled").bool(),
        interval: section.key("interval").duration(),
        timeout: section.key("timeout").duration(),
        unhealthy_threshold: section.key("unhealthy_threshold").count(),
        healthy_threshold: section.key("healthy_threshold").count(),
        endpoint: section.key("endpoint").text().map(Into::into),
        warmup_check_interval: section.key("warmup_check_interval").duration(),
        max_warmup_duration: section.key("max_warmup_duration").duration(),
        recovery_interval: first,
        // A first pause above the longest one means that pauses never grow.
        recovery_max_interval: section.key("recovery_max_interval").duration().max(first),
    }
}

fn queue(section: &CheckedValue) -> QueueSection {
    QueueSection {
        enabled: section.key("enabled").bool(),
        wait: section.key("wait").duration(),
        engine_wait_timeout: section.key("engine_wait_timeout_secs").duration(),
        max_entries: usize::try_from(section.key("max_entries").int()).unwrap_or(usize::MAX),
        max_bytes: section.key("max_bytes").size(),
        hold_above: section.key("hold_above").duration(),
        ageing: section.key("ageing").float(),
        engine_priority: section.key("engine_priority").bool(),
    }
}

fn request(section: &CheckedValue) -> RequestSection {
    RequestSection {
        timeout: section.key("timeout").duration(),
        max_retries: u32::try_from(section.key("max_retries").int()).unwrap_or(u32::MAX),
        stream_idle_timeout: section.key("stream_idle_timeout").duration(),
        stream_max_duration: section.key("stream_max_duration").duration(),
        strict_stream_completion: section.key("strict_stream_completion").bool(),
        connect_timeout: section.key("connect_timeout").duration(),
        hedge_after: section.key("hedge_after").duration_if_set(),
    }
}

fn retry(section: &CheckedValue) -> RetrySection {
    RetrySection {
        max_attempts: section.key("max_attempts").count(),
        base_delay: section.key("base_delay").duration(),
        max_delay: section.key("max_delay").duration(),
        exponential_backoff: section.key("exponential_backoff").bool(),
        jitter: section.key("jitter").bool(),
        budget_ratio: section.key("budget_ratio").float(),
    }
}

fn circuit_breaker(section: &CheckedValue) -> CircuitBreakerSection {
    CircuitBreakerSection {
        enabled: section.key("enabled").bool(),
        consecutive_failures: section.key("consecutive_failures").count(),
        sweep: section.key("sweep").duration(),
        ejection: section.key("ejection").duration(),
        max_ejected_ratio: section.key("max_ejected_ratio").float(),
    }
}

fn logging(section: &CheckedValue) -> LoggingSection {
    LoggingSection {
        level: match section.key("level").word() {
            Some("trace") => LogLevel::Trace,
            Some("debug") => LogLevel::Debug,
            Some("warn") => LogLevel::Warn,
            Some("error") => LogLevel::Error,
            _ => LogLevel::Info,
        },
        format: match section.key("format").word() {
            Some("json") => LogFormat::Json,
            Some("pretty") => LogFormat::Pretty,
            _ => LogFormat::Auto,
        },
        enable_colors: section.key("enable_colors").bool(),
        requests: section.key("requests").bool(),
    }
}

fn metrics(section: &CheckedValue) -> MetricsSection {
    MetricsSection {
        enabled: section.key("enabled").bool(),
        exemplars: section.key("exemplars").bool(),
    }
}

fn compat(section: &CheckedValue) -> CompatSection {
    CompatSection {
        vllm_router_headers: section
            .key("headers")
            .items()
            .iter()
            .any(|item| item.word() == Some("vllm-router")),
        expose_routing_headers: section.key("expose_routing_headers").bool(),
    }
}

fn decisions(section: &CheckedValue) -> DecisionsSection {
    DecisionsSection {
        ring_entries: usize::try_from(section.key("ring_entries").int()).unwrap_or(usize::MAX),
        ring_bytes: section.key("ring_bytes").size_in_memory(),
        candidates: usize::try_from(section.key("candidates").int()).unwrap_or(usize::MAX),
        log: decision_log(section.key("log")),
    }
}

fn decision_log(section: &CheckedValue) -> Option<DecisionLogSection> {
    Some(DecisionLogSection {
        path: section.key("path").text()?.into(),
        interval: section.key("interval").duration(),
        chains: section.key("chains").bool(),
        include_request_text: section.key("include_request_text").bool(),
    })
}
