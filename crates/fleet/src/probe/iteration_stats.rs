//! TensorRT-LLM's `/metrics`: a JSON list with the statistics of the engine's latest iterations.
//!
//! Each read empties the list at the engine, so an empty one means that it computed nothing since
//! the read before.

use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};

use super::engine_figures::{EngineFigures, Figure};

/// The statistics of one iteration of one rank.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Iteration {
    num_active_requests: Option<f64>,
    num_queued_requests: Option<f64>,
    kv_cache_stats: Option<KvCacheStats>,
    #[serde(alias = "attention_dp_rank")]
    attention_dp_rank: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct KvCacheStats {
    used_num_blocks: Option<f64>,
    max_num_blocks: Option<f64>,
}

/// Reads the list; never fails.
pub(super) fn read(body: &[u8]) -> EngineFigures {
    match serde_json::from_slice(body) {
        Ok(Iterations(found)) => found,
        Err(error) => {
            let mut found = EngineFigures::of_known_engine();
            found.reject("/metrics", error);
            found
        }
    }
}

/// The latest iteration of each rank. The others are dropped as they are read: a list may be long.
struct Iterations(EngineFigures);

impl<'de> Deserialize<'de> for Iterations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(LatestIterations).map(Self)
    }
}

struct LatestIterations;

impl<'de> Visitor<'de> for LatestIterations {
    type Value = EngineFigures;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a list of iteration statistics")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut found = EngineFigures::of_known_engine();
        while let Some(iteration) = list.next_element::<Iteration>()? {
            record(&mut found, &iteration);
        }
        Ok(found)
    }
}

fn record(found: &mut EngineFigures, iteration: &Iteration) {
    let rank = iteration.attention_dp_rank.unwrap_or(0);
    found.forget(rank);
    let counts = [
        (
            Figure::Running,
            "numActiveRequests",
            iteration.num_active_requests,
        ),
        (
            Figure::Waiting,
            "numQueuedRequests",
            iteration.num_queued_requests,
        ),
    ];
    for (figure, name, value) in counts {
        if let Some(value) = value {
            found.add(rank, figure, (name, value));
        }
    }
    let blocks = iteration.kv_cache_stats.as_ref();
    if let Some((used, all)) = blocks.and_then(|it| it.used_num_blocks.zip(it.max_num_blocks)) {
        // Without any block the share is no number, which is no valid one.
        found.add(
            rank,
            Figure::Usage,
            ("kvCacheStats.usedNumBlocks", used / all),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EngineLoad;

    fn load(body: &str) -> EngineLoad {
        read(body.as_bytes()).load()
    }

    #[test]
    fn the_latest_iteration_of_each_rank_counts() {
        let page = r#"[
            {"iter":7,"numActiveRequests":9,"kvCacheStats":{"usedNumBlocks":99,"maxNumBlocks":100}},
            {"iter":8,"numActiveRequests":2,"numQueuedRequests":3,
             "kvCacheStats":{"usedNumBlocks":25,"maxNumBlocks":100,"freeNumBlocks":75,"tokensPerBlock":32},
             "inflightBatchingStats":{"numContextRequests":1}}]"#;
        let want = EngineLoad {
            running: Some(2),
            waiting: Some(3),
            kv_usage_ratio: Some(0.25),
        };
        assert_eq!(load(page), want);
        let ranks = r#"[{"attentionDpRank":0,"numActiveRequests":1,"kvCacheStats":{"usedNumBlocks":1,"maxNumBlocks":4}},
            {"attentionDpRank":1,"numActiveRequests":5,"kvCacheStats":{"usedNumBlocks":3,"maxNumBlocks":4}},
            {"attentionDpRank":0,"numActiveRequests":2,"kvCacheStats":{"usedNumBlocks":2,"maxNumBlocks":4}}]"#;
        let want = EngineLoad {
            running: Some(7),
            waiting: None,
            kv_usage_ratio: Some(0.75),
        };
        assert_eq!(load(ranks), want);
    }

    #[test]
    fn an_idle_engine_reports_nothing_and_is_known_all_the_same() {
        for page in ["[]", " [ ]\n", r#"[{"iter":1,"kvCacheStats":null}]"#] {
            let found = read(page.as_bytes());
            assert_eq!(found.load(), EngineLoad::default(), "{page}");
            assert!(found.is_known && found.invalid.is_none(), "{page}");
        }
    }

    #[test]
    fn values_out_of_range_are_ignored_and_named() {
        for (page, name) in [
            (r#"[{"numActiveRequests":-1}]"#, "numActiveRequests"),
            (
                r#"[{"kvCacheStats":{"usedNumBlocks":5,"maxNumBlocks":0}}]"#,
                "kvCacheStats.usedNumBlocks",
            ),
            (
                r#"[{"kvCacheStats":{"usedNumBlocks":0,"maxNumBlocks":0}}]"#,
                "kvCacheStats.usedNumBlocks",
            ),
            (
                r#"[{"kvCacheStats":{"usedNumBlocks":11,"maxNumBlocks":10}}]"#,
                "kvCacheStats.usedNumBlocks",
            ),
            (
                r#"[{"attentionDpRank":4096,"numActiveRequests":1}]"#,
                "numActiveRequests",
            ),
            (r#"[{"numActiveRequests":NaN}]"#, "/metrics"),
            (r#"[{"numActiveRequests":"3"}]"#, "/metrics"),
            ("[", "/metrics"),
            ("[7]", "/metrics"),
        ] {
            let found = read(page.as_bytes());
            assert_eq!(found.load(), EngineLoad::default(), "{page}");
            let invalid = found.invalid.expect(page);
            assert_eq!(invalid.name, name, "{page}");
            assert!(invalid.value.len() <= 40, "{page}");
        }
    }
}
