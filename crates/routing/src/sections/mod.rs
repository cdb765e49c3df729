//! Sections of the configuration that this crate reads.

mod content;
mod decisions;
mod lmcache;
mod prediction;
mod prefix_routing;
mod routing;
mod slo;

pub use content::{SemanticCluster, SemanticClusters, SharedPrefixRouting};
pub use decisions::{DecisionLogSection, DecisionsSection};
pub use lmcache::{FALLBACKS, LmcacheMode, LmcacheSection, PromptCacheBackend, PromptCacheSection};
pub use prediction::PredictionSection;
pub use prefix_routing::PrefixRoutingSection;
pub use routing::{
    AdmissionMode, DynamoSettings, FetchMode, MediumWeightOverrides, MediumWeights,
    ModelRoutingEntry, RoutingSection, SessionMode, SessionSection, WarmSection,
};
pub use slo::SloSection;
