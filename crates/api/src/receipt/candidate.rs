//! The candidates of a decision.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
    ser::SerializeMap,
};

/// A worker and rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetName<'a> {
    /// The worker's name.
    pub worker: Option<Cow<'a, str>>,
    /// Its data-parallel rank.
    pub dp_rank: u32,
}

/// A target that could have taken the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Candidate<'a> {
    /// The target.
    pub target: TargetName<'a>,
    /// Place in the order of cost, from 1.
    pub rank: u32,
    /// Prompt tokens that it holds, each counted in its best tier.
    pub warm_tokens: TierTokens,
    /// Prompt tokens that its reply is expected to report as cached.
    pub predicted_cached_tokens: u32,
    /// Prompt tokens that it would have to compute.
    pub uncached_tokens: u32,
    /// Where the knowledge of its cache comes from.
    #[schemars(extend("enum" = ["events", "predicted"]))]
    pub cache_source: Cow<'a, str>,
    /// State of its event stream.
    pub stream_state: Option<Cow<'a, str>>,
    /// State of its worker.
    pub health: Cow<'a, str>,
    /// Its load.
    pub load: TargetLoad,
    /// The lowest wins.
    pub cost: f64,
    /// Unit of the cost.
    #[schemars(extend("enum" = ["ms", "blocks", "score", "rank"]))]
    pub cost_unit: Cow<'a, str>,
    /// `null` where the policy has no time model.
    pub predicted_ttft_ms: Option<f64>,
    /// Terms of the cost by name, as the policy's page lists them.
    #[schemars(with = "BTreeMap<String, f64>")]
    pub terms: CostTerms<'a>,
    /// The blocks that it would read from another worker instead of computing them; absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<CandidateFetch<'a>>,
}

/// A read of blocks from another worker. Their tokens count as cached, and not as warm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateFetch<'a> {
    /// The target that holds them.
    pub source: TargetName<'a>,
    /// Prompt tokens that are read.
    pub tokens: u32,
    /// Expected time of the read.
    pub ms: f64,
}

/// Leading prompt tokens held by a target: disjoint, each token in its best tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierTokens {
    /// Memory of the accelerator.
    pub device: u32,
    /// Memory of the host.
    pub host: u32,
    /// Disk of the host.
    pub disk: u32,
    /// Storage shared by engines.
    pub remote: u32,
    /// Sent there and not yet confirmed by an event.
    pub speculative: u32,
}

impl TierTokens {
    /// Returns the sum of all tiers.
    pub fn total(self) -> u32 {
        [self.host, self.disk, self.remote, self.speculative]
            .into_iter()
            .fold(self.device, |sum, tokens| sum.saturating_add(tokens))
    }
}

/// Load of a target, counted from the router's decisions and those that other replicas reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetLoad {
    /// Requests that were sent and are not done.
    pub in_flight: u32,
    /// Prompt tokens still to be computed, of requests without a first token.
    pub queued_prefill_tokens: u64,
    /// Sequences that have their first token.
    pub decode_sequences: u32,
    /// Blocks of all active sequences, shared prefixes counted once.
    pub decode_blocks: u64,
    /// How many of the requests in flight other replicas sent; absent if none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub peer_in_flight: u32,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Terms of a cost, in the order of the policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostTerms<'a>(pub Vec<(Cow<'a, str>, f64)>);

impl Serialize for CostTerms<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for CostTerms<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Vec<(Cow<'static, str>, f64)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of names to numbers")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut terms = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, f64>()? {
                    terms.push((name.into(), value));
                }
                Ok(terms)
            }
        }
        deserializer.deserialize_map(InOrder).map(Self)
    }
}
