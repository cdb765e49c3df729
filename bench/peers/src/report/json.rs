//! The figures as one JSON object: `warmroute.index_bench/1`.

use serde_json::{Value, json};

use crate::index::Implementation;

use super::BenchmarkResults;

/// `peer` and `rows` hold the first peer's comparison, `more` those of the other peers. An unknown
/// value is null.
pub(crate) fn json(results: &BenchmarkResults) -> Value {
    let mut peers = results.peers();
    let first = peers.next();
    let more: Vec<Value> = peers
        .map(|peer| json!({ "peer": peer.origin(), "index": peer.name(), "rows": rows(results, Some(peer)) }))
        .collect();
    json!({
        "schema": "warmroute.index_bench/1",
        "peer": first.map(Implementation::origin),
        "rows": rows(results, first),
        "more": more,
        "memory": memory(results),
        "run": results.run,
    })
}

fn rows(results: &BenchmarkResults, peer: Option<Implementation>) -> Vec<Value> {
    let workload_rows = results.workloads.iter().flat_map(|workload| {
        workload.rows(peer).map(|row| {
            json!({
                "workload": workload.name,
                "metric": row.metric.name(),
                "ours": row.ours,
                "peer": row.peer,
                "ratio": row.ratio(),
            })
        })
    });
    workload_rows.collect()
}

fn memory(results: &BenchmarkResults) -> Vec<Value> {
    let each = results.workloads.iter().flat_map(|workload| {
        workload.memory.iter().map(|(contender, memory)| {
            json!({
                "workload": workload.name,
                "index": contender.name(),
                "empty_bytes": memory.empty_bytes,
                "state_bytes": memory.state_bytes,
                "memberships": memory.memberships,
                "distinct_blocks": memory.distinct,
            })
        })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use crate::{
        figures::{Metric, WorkloadFigures},
        machine::RunEnvironment,
    };

    use super::*;

    #[test]
    fn rows_compare_ours_with_the_first_peer_and_more_holds_the_others() {
        let mut figures = WorkloadFigures::new("synthetic_512");
        figures.add(Implementation::Ours, vec![(Metric::QueryP50, 100.0)]);
        figures.add(Implementation::SmgChain, vec![(Metric::QueryP50, 400.0)]);
        let contenders = vec![
            Implementation::Ours,
            Implementation::SmgChain,
            Implementation::DynamoCrtc,
        ];
        let object = json(&BenchmarkResults {
            run: RunEnvironment::this(1, true),
            contenders,
            workloads: vec![figures],
        });

        assert_eq!(object["schema"], "warmroute.index_bench/1");
        assert_eq!(object["peer"], "kv-index 2.0.0");
        let row = json!({
            "workload": "synthetic_512", "metric": "query_p50_ns", "ours": 100.0, "peer": 400.0, "ratio": 4.0
        });
        assert_eq!(object["rows"][0], row);
        assert_eq!(
            object["rows"].as_array().map(Vec::len),
            Some(Metric::ALL.len())
        );
        assert_eq!(object["rows"][1]["peer"], Value::Null);
        assert_eq!(object["more"][0]["peer"], "dynamo-kv-router 1.6.1");
    }
}
