//! Where an engine's publishers are bound, in its own words.
//!
//! The router only needs to know where to connect. Whether `tcp://*:5557` or one address was asked for tells who else can
//! listen, and why nobody may answer.

use serde_json::Value;

use super::{Budget, engine_client::EngineClient};

const SOURCES: &str = "/kv_event_sources";
/// Ranks read from one reply.
const MOST_RANKS: usize = 1024;
/// Longest endpoint taken over, in bytes.
const LONGEST: usize = 512;

/// One rank's publisher as the engine was told to open it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublisherBinding {
    pub(crate) rank: u32,
    pub(crate) endpoint: String,
}

impl PublisherBinding {
    /// On every address of the engine's machine.
    pub(crate) fn everywhere(&self) -> bool {
        let named = self
            .endpoint
            .strip_prefix("tcp://")
            .and_then(|rest| rest.rsplit_once(':'));
        matches!(named, Some(("*" | "0.0.0.0" | "::" | "[::]" | "", _)))
    }
}

/// Asks for them; an engine that does not tell has none.
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
    fn only_wildcards_are_everywhere() {
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
    fn what_is_no_list_of_publishers_has_none() {
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
