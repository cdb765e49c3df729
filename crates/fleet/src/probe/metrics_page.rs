//! A page of an engine's metrics, in the form in which the engine serves it.

use std::time::Duration;

use super::{
    ProbeClient, iteration_stats,
    metrics_text::{self, EngineMetrics},
};
use crate::EngineKind;

const PATH: &str = "/metrics";
/// Where TensorRT-LLM has its Prometheus page, beside the iteration statistics at [`PATH`].
const TRTLLM_PATH: &str = "/prometheus/metrics";
const LARGEST: usize = 16 << 20;

/// Requests the metrics. `Some(None)`: the worker answered that it has none; `None`: it did not
/// answer.
pub(super) async fn fetch(
    client: &ProbeClient,
    engine: Option<EngineKind>,
) -> Option<Option<EngineMetrics>> {
    let page = client.fetch(PATH, LARGEST).await?;
    let found = page.as_deref().map(read);
    let is_known = found.as_ref().is_some_and(EngineMetrics::is_known);
    if is_known || engine != Some(EngineKind::Trtllm) {
        return Some(found);
    }
    let other = client.fetch(TRTLLM_PATH, LARGEST).await.flatten();
    let other = other.as_deref().map(read);
    Some(other.filter(EngineMetrics::is_known).or(found))
}

/// Reads a page: a JSON list of iteration statistics, or Prometheus text; never fails.
pub(super) fn read(body: &[u8]) -> EngineMetrics {
    if body.trim_ascii_start().first() != Some(&b'[') {
        return metrics_text::read(&String::from_utf8_lossy(body));
    }
    let figures = iteration_stats::read(body);
    EngineMetrics {
        load: figures.load(),
        is_other_engine: figures.is_known,
        invalid: figures.invalid,
        ..EngineMetrics::default()
    }
}

/// Requests the metrics within a time limit; `None`: there are none now.
pub(super) async fn fetch_within(
    client: &ProbeClient,
    engine: Option<EngineKind>,
    limit: Duration,
) -> Option<EngineMetrics> {
    fetch(&client.with_timeout(limit), engine).await.flatten()
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;
    use crate::EngineLoad;

    fn load(running: u32, waiting: u32, usage: f64) -> EngineLoad {
        EngineLoad {
            running: Some(running),
            waiting: Some(waiting),
            kv_usage_ratio: Some(usage),
        }
    }

    #[test]
    #[contract("DY12")]
    fn each_engines_page_gives_its_load() {
        let sglang = include_str!("../../../../tests/fixtures/engine-metrics/sglang.txt");
        let trtllm = include_str!("../../../../tests/fixtures/engine-metrics/trtllm.txt");
        let iterations = include_str!("../../../../tests/fixtures/engine-metrics/trtllm.json");
        for (page, want) in [
            (sglang, load(12, 5, 0.83)),
            (trtllm, load(3, 1, 0.62)),
            (iterations, load(4, 2, 0.75)),
        ] {
            let found = read(page.as_bytes());
            assert_eq!(found.load, want);
            assert!(found.is_known() && !found.is_vllm && found.invalid.is_none());
        }
    }

    #[test]
    fn ranks_are_added_and_the_members_of_a_group_and_the_priorities_are_not() {
        let page = "sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 3\n\
                    sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"1\"} 3\n\
                    sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"0\"} 4\n\
                    sglang:num_queue_reqs{dp_rank=\"0\",priority=\"\"} 2\n\
                    sglang:num_queue_reqs{dp_rank=\"0\",priority=\"1\"} 2\n\
                    sglang:token_usage{dp_rank=\"0\"} 0.25\nsglang:token_usage{dp_rank=\"1\"} 0.5\n";
        assert_eq!(read(page.as_bytes()).load, load(7, 2, 0.5));
        let exported = "sglang_num_running_reqs 1\nsglang_num_queue_reqs 0\nsglang_token_usage 1\n";
        assert_eq!(read(exported.as_bytes()).load, load(1, 0, 1.0));
    }

    #[test]
    fn values_out_of_range_are_ignored_and_the_first_one_is_named() {
        for (page, name, value) in [
            ("sglang:token_usage NaN", "sglang:token_usage", "NaN"),
            (
                "sglang:token_usage 1.5\nsglang:token_usage -1",
                "sglang:token_usage",
                "1.5",
            ),
            (
                "sglang:num_running_reqs -1",
                "sglang:num_running_reqs",
                "-1",
            ),
            ("sglang:num_queue_reqs +Inf", "sglang:num_queue_reqs", "inf"),
            (
                "trtllm_kv_cache_utilization{a=\"b\"} 62",
                "trtllm_kv_cache_utilization",
                "62",
            ),
            (
                "sglang:num_running_reqs{dp_rank=\"9999\"} 1",
                "sglang:num_running_reqs",
                "1",
            ),
        ] {
            let found = read(page.as_bytes());
            assert_eq!(found.load, EngineLoad::default(), "{page}");
            let invalid = found.invalid.expect(page);
            assert_eq!((&*invalid.name, &*invalid.value), (name, value));
        }
        let mixed = read(b"sglang:token_usage 0.5\nsglang:token_usage{dp_rank=\"1\"} 7\n");
        assert_eq!(mixed.load.kv_usage_ratio, Some(0.5));
    }

    #[test]
    fn a_page_of_something_else_is_not_known() {
        for page in [
            "",
            "{}",
            "python_info 1",
            "sglang:cache_hit_rate 0.5",
            "\u{0}\u{1}",
        ] {
            let found = read(page.as_bytes());
            assert!(!found.is_known(), "{page}");
            assert_eq!(found.load, EngineLoad::default());
        }
        let long = format!("sglang:token_usage{{a=\"{}\"}} 0.5", "x".repeat(1 << 17));
        assert_eq!(read(long.as_bytes()).load, EngineLoad::default());
    }
}
