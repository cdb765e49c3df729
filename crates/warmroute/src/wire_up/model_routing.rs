//! Overrides for single models, as the decision reads them.

use config::RoutingSection;
use gateway::{ModelRouting, ModelRules};
use routing::{DynamoSettings, MediumWeights, Policy};

pub(super) fn by_model(routing: &RoutingSection) -> ModelRouting {
    ModelRouting::new(routing.models.iter().map(|(name, own)| {
        let rules = ModelRules {
            policy: policy(own.policy),
            prefill_policy: policy(own.prefill_policy),
            decode_policy: policy(own.decode_policy),
            overlap_weight: own.overlap_weight,
            temperature: own.temperature,
            busy_threshold: own.busy_threshold,
            medium_weights: own.medium_weights.map(medium_weights),
        };
        (name.clone(), rules)
    }))
}

/// Returns the policy for a word of the configuration; a test parses every word.
pub(super) fn policy(word: Option<&str>) -> Option<Policy> {
    word.and_then(|word| word.parse().ok())
}

pub(super) fn medium_weights(weights: config::MediumWeights) -> MediumWeights {
    MediumWeights {
        gpu: weights.gpu,
        cpu: weights.cpu,
        disk: weights.disk,
    }
}

pub(super) fn dynamo(settings: config::DynamoSection) -> DynamoSettings {
    DynamoSettings {
        active_request_weight: settings.active_request_weight,
        host_cache_hit_weight: settings.host_cache_hit_weight,
        disk_cache_hit_weight: settings.disk_cache_hit_weight,
    }
}
