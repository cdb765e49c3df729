//! Reads the bind addresses that an engine reports for its publishers.
//!
//! The router only needs to know where to connect. Whether the bind address is `tcp://*:5557` or a
//! single address shows who else can subscribe, and why no publisher may answer.

use serde_json::Value;

use super::{Budget, engine_client::EngineClient};

const SOURCES: &str = "/kv_event_sources";
/// Most ranks read from one reply.
const MOST_RANKS: usize = 1024;
/// Longest endpoint accepted, in bytes.
const LONGEST: usize = 512;

/// Bind address of one rank's publisher, as the engine is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublisherBinding {
    pub(crate) rank: u32,
    pub(crate) endpoint: String,
}

impl PublisherBinding {
    /// Returns whether it is bound on every address of the engine's machine.
    pub(crate) fn everywhere(&self) -> bool {
        let named = self
            .endpoint
            .strip_prefix("tcp://")
            .and_then(|rest| rest.rsplit_once(':'));
        matches!(named, Some(("*" | "0.0.0.0" | "::" | "[::]" | "", _)))
    }
}

/// Queries the bind addresses; empty if the engine does not report them.
pub(crate) async fn query(engine: &EngineClient, budget: Budget) -> Vec<PublisherBinding> {
    if budget.is_spent() {
        return Vec::new();
    }
    let reply = engine.get(SOURCES, budget.at_most(budget.request)).await;
    reply.map_or_else(Vec::new, |reply| read(&reply))
}

fn read(reply: &Value) -> Vec<PublisherBinding> {
    let Some(sources) = reply.as_object() else {
        return Vec::new();
    };
    let one = |(rank, source): (&String, &Value)| {
        let endpoint = source
            .get("endpoint")?
            .as_str()
            .filter(|endpoint| endpoint.len() <= LONGEST)?;
        Some(PublisherBinding {
            rank: rank.parse().ok()?,
            endpoint: endpoint.to_owned(),
        })
    };
    sources.iter().filter_map(one).take(MOST_RANKS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_wildcards_bind_every_network() {
        for (endpoint, everywhere) in [
            ("tcp://*:5557", true),
            ("tcp://0.0.0.0:5557", true),
            ("tcp://[::]:5557", true),
            ("tcp://127.0.0.1:5557", false),
            ("tcp://[::1]:5557", false),
            ("ipc:///run/*:1", false),
            ("", false),
        ] {
            let bound = PublisherBinding {
                rank: 0,
                endpoint: endpoint.to_owned(),
            };
            assert_eq!(bound.everywhere(), everywhere, "{endpoint}");
        }
    }

    #[test]
    fn an_invalid_publisher_list_is_empty() {
        let reply = json!({"1": {"endpoint": "tcp://*:2"}, "x": {"endpoint": "tcp://*:3"}, "2": {"endpoint": 7}, "3": 7});
        assert_eq!(
            read(&reply),
            [PublisherBinding {
                rank: 1,
                endpoint: "tcp://*:2".to_owned()
            }]
        );
        for nonsense in [
            json!(null),
            json!([1]),
            json!({"0": {"endpoint": "x".repeat(LONGEST + 1)}}),
        ] {
            assert_eq!(read(&nonsense), [], "{nonsense}");
        }
    }
}
