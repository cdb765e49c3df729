//! `routing.models` as the request path reads it.

use config::Routing;
use gateway::{ModelRouting, ModelRules};
use routing::Policy;

pub(super) fn by_model(routing: &Routing) -> ModelRouting {
    ModelRouting::new(routing.models.iter().map(|(name, own)| {
        let rules = ModelRules {
            policy: policy(own.policy),
            prefill_policy: policy(own.prefill_policy),
            decode_policy: policy(own.decode_policy),
            overlap_weight: own.overlap_weight,
            temperature: own.temperature,
            busy_threshold: own.busy_threshold,
        };
        (name.clone(), rules)
    }))
}

/// A policy by the configuration's word; a test reads every word that it takes.
pub(super) fn policy(word: Option<&str>) -> Option<Policy> {
    word.and_then(|word| word.parse().ok())
}
