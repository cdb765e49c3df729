//! Overrides for single models, as the decision reads them.

use gateway::{ModelRouting, ModelRules};
use routing::RoutingSection;

pub(super) fn by_model(routing: &RoutingSection) -> ModelRouting {
    ModelRouting::new(routing.models.iter().map(|(name, own)| {
        let rules = ModelRules {
            policy: own.policy,
            prefill_policy: own.prefill_policy,
            decode_policy: own.decode_policy,
            overlap_weight: own.overlap_weight,
            temperature: own.temperature,
            busy_threshold: own.busy_threshold,
            medium_weights: own.medium_weights.over(routing.medium_weights),
        };
        (name.clone(), rules)
    }))
}
