//! `/metrics`, with vLLM's names: only those that routers read.

use std::fmt::Write;

use engine_model::EngineStats;
use http::{Response, StatusCode};

use crate::server_state::ServerState;

use super::{SimBody, body};

/// Name, type, help and value of a metric.
type Metric = (
    &'static str,
    &'static str,
    &'static str,
    fn(&EngineStats) -> f64,
);

const METRICS: &[Metric] = &[
    (
        "num_requests_running",
        "gauge",
        "Number of requests in model execution batches.",
        |stats| stats.running as f64,
    ),
    (
        "num_requests_waiting",
        "gauge",
        "Number of requests waiting to be processed.",
        |stats| stats.waiting as f64,
    ),
    (
        "kv_cache_usage_perc",
        "gauge",
        "KV-cache usage. 1 means 100 percent usage.",
        |stats| stats.blocks.used as f64 / stats.blocks.total.max(1) as f64,
    ),
    (
        "prefix_cache_queries_total",
        "counter",
        "Prefix cache queries, in tokens.",
        |stats| stats.queried_tokens as f64,
    ),
    (
        "prefix_cache_hits_total",
        "counter",
        "Prefix cache hits, in tokens.",
        |stats| stats.device_hit_tokens as f64,
    ),
    (
        "external_prefix_cache_queries_total",
        "counter",
        "Queries of the host tier, in tokens.",
        |stats| stats.queried_tokens.saturating_sub(stats.device_hit_tokens) as f64,
    ),
    (
        "external_prefix_cache_hits_total",
        "counter",
        "Hits in the host tier, in tokens.",
        |stats| stats.host_hit_tokens as f64,
    ),
    (
        "num_preemptions_total",
        "counter",
        "Number of preemptions.",
        |stats| stats.preemptions as f64,
    ),
    (
        "prompt_tokens_total",
        "counter",
        "Number of prefill tokens processed.",
        |stats| stats.prompt_tokens as f64,
    ),
    (
        "generation_tokens_total",
        "counter",
        "Number of generation tokens processed.",
        |stats| stats.generated_tokens as f64,
    ),
];

/// Returns the whole page.
pub(crate) fn metrics(state: &ServerState) -> Response<SimBody> {
    let model = label(&state.config.model);
    let stats: Vec<_> = state.ranks.iter().map(|rank| rank.stats()).collect();
    let mut page = String::new();
    // Writing to a string cannot fail.
    for (name, kind, help, value) in METRICS {
        let _ = writeln!(page, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
        for (rank, stats) in stats.iter().enumerate() {
            let _ = writeln!(
                page,
                "vllm:{name}{{engine=\"{rank}\",model_name=\"{model}\"}} {:?}",
                value(stats)
            );
        }
    }
    let _ = writeln!(
        page,
        "# HELP vllm:request_success_total Count of ended requests."
    );
    let _ = writeln!(page, "# TYPE vllm:request_success_total counter");
    for (rank, stats) in stats.iter().enumerate() {
        for (reason, count) in [("length", stats.finished), ("abort", stats.aborted)] {
            let _ = writeln!(
                page,
                "vllm:request_success_total{{engine=\"{rank}\",finished_reason=\"{reason}\",model_name=\"{model}\"}} {:?}",
                count as f64
            );
        }
    }
    let _ = writeln!(
        page,
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig"
    );
    let _ = writeln!(page, "# TYPE vllm:cache_config_info gauge");
    let caching = if state.config.cache.prefix_caching {
        "True"
    } else {
        "False"
    };
    for rank in 0..stats.len() {
        let (size, blocks) = (
            state.config.cache.block_size.tokens(),
            state.config.cache.kv_blocks,
        );
        let _ = writeln!(
            page,
            "vllm:cache_config_info{{block_size=\"{size}\",enable_prefix_caching=\"{caching}\",engine=\"{rank}\",num_gpu_blocks=\"{blocks}\"}} 1.0"
        );
    }
    body::bytes(
        StatusCode::OK,
        "text/plain; version=0.0.4; charset=utf-8",
        page.into(),
    )
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
