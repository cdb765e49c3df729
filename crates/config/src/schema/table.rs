//! The table itself. Read it top-down: the sections first, their keys below.

use super::{
    Availability, KeySchema, Range, ValueKind, WordChoice,
    cache::{CACHE, MODEL_AGGREGATION},
    compat::COMPAT,
    content_routing::{SEMANTIC_CLUSTERS, SHARED_PREFIX_ROUTING},
    discovery::DISCOVERY,
    hooks::HOOK,
    key,
    kinds::{
        ANY_INT, ANY_PORT, AUTO, AUTO_OR_OFF, BLOCK_SIZE, COUNT, PAUSE, PORT, RATIO, SECONDS,
        SECONDS_OR_ZERO, STATUS, section, size,
    },
    kv::{KV_EVENTS, WORKER_KV_EVENTS},
    lmcache::LMCACHE,
    models::RULE,
    prefixes::{KV_CACHE_INDEX, PREFIX_ROUTING},
    queue::QUEUE,
    replicas::REPLICAS,
    response_cache::RESPONSE_CACHE,
    routing::{DYNAMO, MEDIUM_WEIGHTS, MODEL_ROUTING, OVERLAP_WEIGHT, POLICIES, TEMPERATURE},
    tls, word, word_later,
};

/// The sections of the file that this version acts on.
pub(crate) const ROOT: &[KeySchema] = &[
    section("server", SERVER, "The listener that clients use."),
    section("admin", ADMIN, "The listener that operators use."),
    key(
        "workers",
        ValueKind::List(&ValueKind::Worker(WORKER)),
        "[]",
        "The engines (alias `backends`). An entry is a mapping, or just `[NAME=]URL`.",
    ),
    section(
        "discovery",
        DISCOVERY,
        "Workers that are found, beside those of `workers`.",
    ),
    section(
        "models",
        MODELS,
        "Where tokenizers and chat templates come from.",
    ),
    section("routing", ROUTING, "How a worker is chosen."),
    section(
        "disaggregation",
        DISAGGREGATION,
        "How prompts are computed apart from their replies.",
    ),
    section("queue", QUEUE, "How requests wait here for a worker."),
    section(
        "prefix_routing",
        PREFIX_ROUTING,
        "How requests are kept together by the beginning of their prompt.",
    ),
    section(
        "kv_events",
        KV_EVENTS,
        "How KV events are followed, and what the block index may hold.",
    ),
    section(
        "kv_cache_index",
        KV_CACHE_INDEX,
        "Which backend has which prompt prefix, as streams that name whole prefixes say.",
    ),
    section(
        "response_cache",
        RESPONSE_CACHE,
        "Redis, which `kv_cache_index` uses too; the cache of replies itself.",
    ),
    section(
        "cache",
        CACHE,
        "What is kept of model lists, and of requests that are alike.",
    ),
    section(
        "model_aggregation",
        MODEL_AGGREGATION,
        "How the lists of all workers become one.",
    ),
    section(
        "parity",
        PARITY,
        "How far predictions may be off before a worker's events are not believed any more.",
    ),
    section("health_checks", HEALTH_CHECKS, "How workers are checked."),
    section("request", REQUEST, "Time limits of one request."),
    section(
        "retry",
        RETRY,
        "How often and how soon a request is sent again.",
    ),
    section(
        "circuit_breaker",
        CIRCUIT_BREAKER,
        "When a failing worker is left out for a while.",
    ),
    key(
        "pre_routing_hooks",
        ValueKind::List(&ValueKind::Section(HOOK)),
        "[]",
        "Services that are asked about a generation before it is routed, in this order.",
    ),
    section(
        "replicas",
        REPLICAS,
        "What several routers of one fleet share.",
    ),
    section(
        "logging",
        LOGGING,
        "What is logged; the log goes to stderr.",
    ),
    section("metrics", METRICS, "What is counted."),
    section("decisions", DECISIONS, "What is kept of each decision."),
    section(
        "compat",
        COMPAT,
        "Names of other routers that this one answers with too.",
    ),
];

/// Sections that are known by name only: a file that sets one gets a problem.
pub(crate) const LATER_SECTIONS: &[&str] = &["tenants", "tracing"];

/// Other names for top-level keys.
pub(crate) const TOP_ALIASES: &[(&str, &[&str])] = &[
    ("backends", &["workers"]),
    ("api_keys", &["tenants"]),
    ("decision_log", &["decisions", "log"]),
];

const SERVER: &[KeySchema] = &[
    key(
        "listen",
        ValueKind::Listen,
        "127.0.0.1:8080",
        "Where clients connect; port 0 = chosen by the system. Anything but loopback needs `insecure_open`.",
    ),
    key(
        "port",
        ANY_PORT,
        "auto",
        "Port of the data listener; `auto` = the one in `listen`.",
    ),
    key(
        "insecure_open",
        ValueKind::Bool,
        "false",
        "Listen off loopback although no API key protects the listener (`--insecure-open`).",
    ),
    key(
        "also_listen",
        ValueKind::List(&ValueKind::Listen),
        "[]",
        "More addresses to listen at.",
    ),
    key(
        "probe_listen",
        ValueKind::Listen,
        "~",
        "Address that serves only `/livez` and `/readyz`, from a thread of its own: plainly, and to everyone.",
    ),
    section(
        "tls",
        tls::LISTENER,
        "TLS of the data listener; a unix socket stays as it is.",
    ),
    // The lower end is what the HTTP reader needs for its buffer.
    key(
        "max_head_bytes",
        size(8 << 10, 1 << 20),
        "32KiB",
        "Longest request head; above: 431.",
    ),
    key(
        "max_body_bytes",
        size(1, 4 << 30),
        "32MiB",
        "Longest request body; above: 413.",
    ),
    key(
        "max_held_bytes",
        size(1, 1 << 50),
        "1GiB",
        "Bytes of the bodies of all running requests; what does not fit: 503. At least `max_body_bytes`. A part is left to \
         small bodies and to other clients: docs/limits.md.",
    ),
    key(
        "max_choices",
        ANY_INT,
        "128",
        "Most completions of one prompt (`n`); above: 400; 0 = off.",
    ),
    key(
        "max_prompts",
        ANY_INT,
        "2048",
        "Most prompts, or texts to compute, in one request; above: 400; 0 = off.",
    ),
    key(
        "max_stop",
        ANY_INT,
        "64",
        "Most texts to stop at (`stop`, `stop_sequences`); above: 400; 0 = off.",
    ),
    key(
        "max_connections",
        ValueKind::WordOr(
            AUTO,
            &ValueKind::Int {
                min: 1,
                max: 10_000_000,
            },
        ),
        "auto",
        "Most open client connections; `auto` = from the limit on file descriptors. At the limit the longest idle one yields to \
         a new one.",
    ),
    key(
        "keep_alive",
        SECONDS,
        "75s",
        "An idle client connection is closed after this.",
    ),
    key(
        "head_timeout",
        SECONDS,
        "10s",
        "A request head must be complete within this: the first one of a connection from its beginning, later ones from their \
         first byte.",
    ),
    key(
        "body_timeout",
        SECONDS,
        "60s",
        "A request body must be complete within this; one that comes at less than 1 KiB/s is refused earlier.",
    ),
    key(
        "half_close",
        ValueKind::Bool,
        "false",
        "A client that ends its side of the connection after its request still gets the answer. Few clients do that, and who \
         closes looks the same: such a request is not aborted before something is written to it.",
    ),
    key(
        "drain_timeout",
        SECONDS_OR_ZERO,
        "300s",
        "How long running streams may go on after a stop signal.",
    ),
    key(
        "drain_grace",
        SECONDS_OR_ZERO,
        "5s",
        "How long new connections are still served after SIGTERM or `POST /admin/drain`, while readiness says no: whoever \
         balances load needs as long to notice. SIGINT does not wait.",
    ),
    key(
        "memory_budget",
        ValueKind::WordOr(
            AUTO_OR_OFF,
            &ValueKind::Size {
                min: 16 << 20,
                max: 1 << 50,
            },
        ),
        "auto",
        "Memory of the process (RSS) near which things are given up: at 80 % half of the caches, at 90 % what caches would take \
         in and bodies above 1 MiB (503), at 95 % new requests (503), at 98 % new connections; `auto` = 90 % of the control \
         group's limit or of the machine's memory, whichever is less; `off` = no budget.",
    ),
    key(
        "runtime_threads",
        ValueKind::WordOr(AUTO, &ValueKind::Int { min: 1, max: 1_024 }),
        "auto",
        "Threads that serve requests; `auto` = one per core.",
    ),
];

const ADMIN: &[KeySchema] = &[
    key(
        "listen",
        ValueKind::WordOr(&[word_later("same")], &ValueKind::Listen),
        "127.0.0.1:9191",
        "Where operators connect. Anything but loopback needs `token_file`.",
    ),
    key(
        "token_file",
        ValueKind::Path,
        "~",
        "File with the token that admin calls must carry.",
    ),
    section("tls", tls::LISTENER, "TLS of the admin listener."),
    key(
        "dashboard",
        ValueKind::Bool,
        "true",
        "Serve the dashboard where the program has one.",
    )
    .later(),
    key(
        "show_text",
        ValueKind::Bool,
        "false",
        "Show prompt text to operators.",
    )
    .later(),
];

const WORKER: &[KeySchema] = &[
    key(
        "name",
        ValueKind::Text,
        "~",
        "Its name in headers, logs and metrics; unset = `host:port` of the URL. Unique.",
    ),
    key("url", ValueKind::WorkerUrl, "~", "Its base URL. Required."),
    key(
        "type",
        ValueKind::Word(&[
            word("auto"),
            word("vllm"),
            word("sglang"),
            word("trtllm"),
            word("openai"),
            word("llamacpp"),
            word("ollama"),
            word("mlxcel"),
            word("lmstudio"),
            WordChoice {
                word: "continuum",
                also: &["continuum-router"],
                built: Availability::Now,
            },
            word("generic"),
            word("azure"),
            word("anthropic"),
            word("gemini"),
        ]),
        "auto",
        "What kind of engine it is; `auto` = found out by asking it.",
    ),
    key(
        "models",
        ValueKind::List(&ValueKind::Text),
        "[]",
        "It serves only these models; empty = those it lists.",
    ),
    key(
        "role",
        ValueKind::Word(&[word("unified"), word("prefill"), word("decode")]),
        "unified",
        "Which phases it serves: `prefill` computes prompts for others and gets no whole request.",
    ),
    key(
        "weight",
        ValueKind::Float(Range {
            min: 0.0,
            max: 1e6,
            open: true,
        }),
        "1.0",
        "Its share compared with the others, under `least_loaded` and `random`.",
    ),
    key(
        "messages",
        ValueKind::Word(&[word("auto"), word("native"), word("translate")]),
        "auto",
        "How it is asked for Anthropic's messages: `native` = as the client did, `translate` = by a chat completion; `auto` = \
         found out by asking it.",
    ),
    key(
        "api_key",
        ValueKind::Secret,
        "~",
        "Sent to the engine as a bearer token (type `anthropic`: as `x-api-key`) in place of the client's.",
    ),
    key(
        "block_size",
        BLOCK_SIZE,
        "auto",
        "Tokens per KV block; `auto` = `models.defaults.block_size`.",
    ),
    key(
        "dp_ranks",
        ValueKind::WordOr(AUTO, &ValueKind::Int { min: 1, max: 4_096 }),
        "auto",
        "Data-parallel ranks; `auto` = as found.",
    ),
    key(
        "bootstrap_port",
        PORT,
        "~",
        "Port of a prefill worker's bootstrap server (`mooncake`, `sglang`); unset = the engine's own default.",
    ),
    section(
        "tls",
        tls::WORKER,
        "Whom an `https://` worker must prove to be.",
    ),
    section(
        "health_check",
        HEALTH_CHECK,
        "How it is checked, where that differs from its type.",
    ),
    section(
        "kv_events",
        WORKER_KV_EVENTS,
        "Where its KV events come from.",
    ),
    key(
        "allow_tiers",
        ValueKind::List(&ValueKind::Word(&[
            word("device"),
            word("host"),
            word("disk"),
            word("remote"),
        ])),
        "[device, host, disk]",
        "Tiers whose blocks count as warm.",
    ),
];

const HEALTH_CHECK: &[KeySchema] = &[
    key(
        "endpoint",
        ValueKind::UrlPath,
        "~",
        "Path asked first; unset = as the type has it.",
    ),
    key(
        "fallback_endpoints",
        ValueKind::List(&ValueKind::UrlPath),
        "~",
        "Paths asked in order when the first is answered 404; unset = as the type has them.",
    ),
    key(
        "method",
        ValueKind::Word(&[word("GET"), word("POST"), word("HEAD")]),
        "~",
        "How the path is asked; unset = GET (type `anthropic`: POST of `{}`, which costs no tokens).",
    ),
    key("body", ValueKind::Free, "~", "JSON body of a POST."),
    key(
        "accept_status",
        ValueKind::List(&STATUS),
        "~",
        "Statuses that mean healthy; unset = 200 (type `anthropic`: 200, 400, 401, 429).",
    ),
    key(
        "warmup_status",
        ValueKind::List(&STATUS),
        "[503]",
        "Statuses that mean the model is loading.",
    ),
    key(
        "timeout",
        SECONDS,
        "~",
        "Time for one answer; unset = `health_checks.timeout`.",
    ),
];

const MODELS: &[KeySchema] = &[
    section(
        "defaults",
        &[
            TOKENIZER,
            CHAT_TEMPLATE,
            key(
                "block_size",
                BLOCK_SIZE,
                "auto",
                "Tokens per KV block of workers that do not set their own; `auto` = asked of each engine.",
            ),
        ],
        "For every model without an entry.",
    ),
    key(
        "entries",
        ValueKind::Map(&ValueKind::Section(&[TOKENIZER, CHAT_TEMPLATE])),
        "{}",
        "By model id; a key left out is that of `defaults`.",
    ),
    key(
        "rules",
        ValueKind::List(&ValueKind::Section(RULE)),
        "[]",
        "Which model takes the place of which; the first rule that matches counts.",
    ),
    key(
        "aliases",
        ValueKind::Map(&ValueKind::Text),
        "{}",
        "Other names of models: `NAME: MODEL`. `/v1/models` lists them.",
    ),
];

const TOKENIZER: KeySchema = key(
    "tokenizer",
    ValueKind::WordOr(
        &[word("auto"), word("engine"), word("none")],
        &ValueKind::Path,
    ),
    "auto",
    "Directory with `tokenizer.json`, or `auto` (the local model hub, our own engine's files on this machine, the engine's \
     `/tokenize`), `engine` (its `/tokenize`), `none` (prompts are compared as text).",
);

const CHAT_TEMPLATE: KeySchema = key(
    "chat_template",
    ValueKind::WordOr(AUTO, &ValueKind::Path),
    "auto",
    "Template file; `auto` = the one that comes with the tokenizer.",
);

const ROUTING: &[KeySchema] = &[
    key(
        "policy",
        ValueKind::Word(POLICIES),
        "~",
        "How a worker is chosen when the request does not say; unset = `warm`, or `continuum` where `prefix_routing` or `kv_cache_index` is enabled.",
    ),
    key(
        "prefill_policy",
        ValueKind::Word(POLICIES),
        "~",
        "Policy among prefill workers; unset = `policy`.",
    ),
    key(
        "decode_policy",
        ValueKind::Word(POLICIES),
        "~",
        "Policy among the workers that generate, of models with prefill or decode workers; unset = `policy`.",
    ),
    key(
        "overlap_weight",
        OVERLAP_WEIGHT,
        "1.0",
        "Weight of cached prefixes. At 0 caches do not count and no KV events are followed (as `kv_events.enabled: false`).",
    ),
    key(
        "temperature",
        TEMPERATURE,
        "0.0",
        "0 = always the best worker; above, how evenly choices are spread.",
    ),
    key(
        "busy_threshold",
        RATIO,
        "~",
        "A worker whose KV cache is fuller than this, by its own metrics, gets nothing; unset = off.",
    ),
    key(
        "track_active_blocks",
        ValueKind::Bool,
        "true",
        "Count the blocks of running requests as load.",
    ),
    key(
        "tokenize_budget",
        SECONDS_OR_ZERO,
        "2ms",
        "Longest time spent on a prompt's tokens for one decision, 25 times as long where the engine is asked for them; \
         beyond it the text prefix is used.",
    ),
    key(
        "reservation_ttl",
        SECONDS,
        "300s",
        "A reservation of `/v1/route` without a call is given back after this.",
    ),
    key(
        "speculative",
        ValueKind::Bool,
        "true",
        "Count a decision's own blocks as warm at once.",
    ),
    key(
        "speculative_ttl",
        SECONDS,
        "2s",
        "How long they count, unless the engine confirms them.",
    ),
    key(
        "hash_seed_of_rings",
        ANY_INT,
        "0",
        "Seed of every hash that places a worker or a key; replicas place alike only with the same one.",
    ),
    section(
        "session",
        &[
            key(
                "mode",
                ValueKind::Word(&[word("soft"), word("hard"), word("off")]),
                "soft",
                "`soft` = of workers that cost `warm` about the same a session's last one is taken; `hard` = under every \
                 policy a session goes to its last worker, unless that is out of use or holds too many requests.",
            ),
            key(
                "headers",
                ValueKind::List(&ValueKind::HeaderName),
                "[x-semantic-cluster-id, x-session-id, x-user-id]",
                "Headers that name a session; the first that a request has counts, also for the policies that hash.",
            ),
        ],
        "Which requests belong together, and how much that counts.",
    ),
    section(
        "warm",
        &[],
        "The policy `warm` learns what it needs: it has no settings.",
    ),
    section(
        "dynamo",
        DYNAMO,
        "What the policy `dynamo_cost` takes beside `overlap_weight` and `temperature`.",
    ),
    section(
        "medium_weights",
        MEDIUM_WEIGHTS,
        "What a warm block counts under `kv_aware`, by where it is.",
    ),
    section(
        "lmcache",
        LMCACHE,
        "The LMCache controller that the policy `lmcache_aware` asks.",
    ),
    section(
        "semantic_clusters",
        SEMANTIC_CLUSTERS,
        "Workers for prompts that mean alike.",
    ),
    section(
        "shared_prefix_routing",
        SHARED_PREFIX_ROUTING,
        "A memory of who served prompts that begin alike.",
    ),
    key(
        "models",
        ValueKind::Map(&ValueKind::Section(MODEL_ROUTING)),
        "{}",
        "Other settings for some models, by the name in requests or by that of the base model; a `*` at a name's end stands for \
         anything. The whole name counts before the longest with a `*`.",
    ),
];

const DISAGGREGATION: &[KeySchema] = &[
    key(
        "mode",
        ValueKind::Word(&[word("auto"), word("off")]),
        "auto",
        "`auto` = requests of a model that has prefill workers are split; `off` = never, and prefill workers get nothing.",
    ),
    key(
        "connector",
        ValueKind::Word(&[word("nixl"), word("mooncake"), word("sglang")]),
        "nixl",
        "How engines hand a prompt's KV over.",
    ),
    key(
        "uncached_token_threshold",
        ValueKind::Int {
            min: 0,
            max: u32::MAX as u64,
        },
        "0",
        "A decode worker that lacks no more than so many tokens of a prompt computes it itself; 0 = off.",
    ),
    key(
        "fallback",
        ValueKind::Word(&[word("decode_only")]),
        "decode_only",
        "What becomes of a request whose prefill fails or has no worker: its decode worker computes the prompt.",
    ),
];

const PARITY: &[KeySchema] = &[
    key("window", SECONDS, "600s", "How long a request counts."),
    // The upper end is the most samples stored per rank.
    key(
        "min_joined",
        ValueKind::Int { min: 1, max: 2_048 },
        "50",
        "Fewer requests than this decide nothing.",
    ),
    key(
        "drift_ratio",
        RATIO,
        "0.05",
        "Difference between predicted and actual cached tokens, per prompt token, above which a worker is reported.",
    ),
    key(
        "downgrade_ratio",
        RATIO,
        "0.2",
        "The same above which its cache is predicted from our own decisions.",
    ),
    key(
        "recover_ratio",
        RATIO,
        "0.02",
        "The same at or below which it is well again.",
    ),
];

const HEALTH_CHECKS: &[KeySchema] = &[
    key(
        "enabled",
        ValueKind::Bool,
        "true",
        "Check workers by asking them.",
    ),
    key("interval", PAUSE, "30s", "Time between checks."),
    key("timeout", SECONDS, "10s", "Time for one answer."),
    key(
        "unhealthy_threshold",
        COUNT,
        "3",
        "Failures in a row that make a worker unhealthy.",
    ),
    key(
        "healthy_threshold",
        COUNT,
        "2",
        "Successes in a row that bring it back.",
    ),
    key(
        "endpoint",
        ValueKind::UrlPath,
        "~",
        "Path asked first; unset = the worker type's own list.",
    ),
    key(
        "warmup_check_interval",
        PAUSE,
        "1s",
        "Time between checks while a worker loads its model.",
    ),
    key(
        "max_warmup_duration",
        SECONDS,
        "300s",
        "A worker that loads longer than this is unhealthy.",
    ),
    key(
        "recovery_interval",
        PAUSE,
        "250ms",
        "First pause between knocks on a worker that is down.",
    ),
    key(
        "recovery_max_interval",
        PAUSE,
        "2s",
        "Longest pause between knocks.",
    ),
];

const REQUEST: &[KeySchema] = &[
    key(
        "timeout",
        SECONDS,
        "300s",
        "Time for a stream's first byte, or for a whole other reply, over all attempts.",
    ),
    key(
        "max_retries",
        ValueKind::Int { min: 0, max: 100 },
        "3",
        "Most times a request is sent again.",
    ),
    key(
        "retry_delay",
        SECONDS_OR_ZERO,
        "1s",
        "First delay; counts only when set while `retry.base_delay` is not.",
    ),
    key(
        "stream_idle_timeout",
        SECONDS,
        "120s",
        "A stream without a byte for this long is cut.",
    ),
    key(
        "stream_max_duration",
        SECONDS,
        "3600s",
        "A stream is cut after this in any case.",
    ),
    key(
        "strict_stream_completion",
        ValueKind::Bool,
        "false",
        "A stream that the engine ends without `finish_reason` and without `[DONE]` is cut with an error event, instead of \
         passing as it is.",
    ),
    key(
        "connect_timeout",
        SECONDS,
        "1s",
        "Time for one TCP connect.",
    ),
    key(
        "hedge_after",
        SECONDS,
        "~",
        "Where no byte came within this, another worker is asked too, and the first to answer counts; unset = off.",
    ),
];

const RETRY: &[KeySchema] = &[
    key(
        "max_attempts",
        ValueKind::Int { min: 1, max: 100 },
        "3",
        "Most times a request is sent, the first included; at most 1 + `request.max_retries`.",
    ),
    key(
        "base_delay",
        SECONDS_OR_ZERO,
        "100ms",
        "First delay before the same worker is tried again.",
    ),
    key("max_delay", SECONDS_OR_ZERO, "30s", "Longest delay."),
    key(
        "exponential_backoff",
        ValueKind::Bool,
        "true",
        "Double the delay each time.",
    ),
    key(
        "jitter",
        ValueKind::Bool,
        "true",
        "Draw the delay from its upper half.",
    ),
    key(
        "budget_ratio",
        RATIO,
        "0.2",
        "Retries in flight over requests in flight, at most.",
    ),
];

const CIRCUIT_BREAKER: &[KeySchema] = &[
    key(
        "enabled",
        ValueKind::Bool,
        "true",
        "Leave failing workers out.",
    ),
    key(
        "consecutive_failures",
        COUNT,
        "5",
        "Failures in a row that leave a worker out.",
    ),
    key("sweep", PAUSE, "10s", "Time between looks at all workers.").later(),
    key(
        "ejection",
        SECONDS,
        "30s",
        "How long a worker is left out the first time.",
    ),
    key(
        "max_ejected_ratio",
        RATIO,
        "0.5",
        "Share of a pool that may be left out; never its last worker.",
    ),
];

const LOGGING: &[KeySchema] = &[
    key(
        "level",
        ValueKind::Word(&[
            word("trace"),
            word("debug"),
            word("info"),
            word("warn"),
            word("error"),
        ]),
        "info",
        "The least important level that is logged.",
    ),
    key(
        "format",
        ValueKind::Word(&[word("auto"), word("json"), word("pretty")]),
        "auto",
        "How a line looks; `auto` = pretty on a terminal, else JSON.",
    ),
    key(
        "enable_colors",
        ValueKind::Bool,
        "false",
        "Colours in the pretty form.",
    ),
    key(
        "requests",
        ValueKind::Bool,
        "false",
        "One line per request.",
    ),
];

const METRICS: &[KeySchema] = &[
    key("enabled", ValueKind::Bool, "true", "Serve `/metrics`."),
    key(
        "exemplars",
        ValueKind::Bool,
        "true",
        "Give histograms exemplars.",
    )
    .later(),
];

const DECISIONS: &[KeySchema] = &[
    key(
        "ring_entries",
        ValueKind::Int {
            min: 1,
            max: 10_000_000,
        },
        "1000",
        "Most receipts kept.",
    ),
    key(
        "ring_bytes",
        size(64 << 10, 64 << 30),
        "16MiB",
        "Most memory for receipts.",
    ),
    key(
        "candidates",
        ValueKind::Int { min: 2, max: 1_024 },
        "16",
        "Most candidates kept per receipt.",
    ),
    section(
        "log",
        &[
            key(
                "path",
                ValueKind::Path,
                "~",
                "File that gets one receipt per line when its request is over; unset: no log.",
            ),
            key(
                "interval",
                PAUSE,
                "10s",
                "Time between writes, less where much is waiting.",
            ),
            key(
                "chains",
                ValueKind::Bool,
                "false",
                "Write the hashes of the prompt's blocks too, which `replay` needs.",
            ),
            key(
                "include_request_text",
                ValueKind::Bool,
                "false",
                "Write the prompt's text too, as `request_text`.",
            ),
        ],
        "The decision log (alias: top-level `decision_log`).",
    ),
];
