//! Routing settings of single models that differ from the general ones (`routing.models`).
//!
//! A request's own headers take precedence over them; this module does not read headers.

use std::{collections::HashMap, sync::Arc};

use fleet::ModelView;
use routing::{MediumWeights, Policy};

/// One model's settings; `None`: as in general.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelRules {
    /// The policy; also for either pool without a policy of its own.
    pub policy: Option<Policy>,
    /// The policy among prefill workers.
    pub prefill_policy: Option<Policy>,
    /// The policy among decode workers.
    pub decode_policy: Option<Policy>,
    /// Weight of cached prefixes.
    pub overlap_weight: Option<f64>,
    /// 0 takes the lowest cost; above 0 the choice is random by cost.
    pub temperature: Option<f64>,
    /// A worker whose KV cache usage is above this share gets none of the model's requests.
    pub busy_threshold: Option<f64>,
    /// The value of a cached block by tier.
    pub medium_weights: Option<MediumWeights>,
}

/// The settings of models, by name.
#[derive(Clone, Debug, Default)]
pub struct ModelRouting {
    named: HashMap<Box<str>, ModelRules>,
    /// By name prefix, the longest first.
    beginnings: Vec<(Box<str>, ModelRules)>,
    usual: ModelRules,
}

impl ModelRouting {
    /// Creates the table; a `*` at the end of a name matches anything.
    pub fn new(entries: impl IntoIterator<Item = (String, ModelRules)>) -> Self {
        let mut routing = Self::default();
        for (name, rules) in entries {
            match name.strip_suffix('*') {
                Some(beginning) => routing.beginnings.push((beginning.into(), rules)),
                None => drop(routing.named.insert(name.into(), rules)),
            }
        }
        routing
            .beginnings
            .sort_by_key(|(beginning, _)| std::cmp::Reverse(beginning.len()));
        routing
    }

    /// Returns the settings of a model: by its own name, else by the base model's.
    pub(crate) fn of(&self, model: &ModelView) -> &ModelRules {
        let base = model
            .candidates
            .first()
            .map_or(&model.id, |first| &first.namespace_model);
        self.by_names(&model.id, base)
    }

    fn by_names(&self, id: &Arc<str>, base: &Arc<str>) -> &ModelRules {
        let whole = || self.named.get(&**id).or_else(|| self.named.get(&**base));
        let begins = |(beginning, _): &&(Box<str>, ModelRules)| {
            id.starts_with(&**beginning) || base.starts_with(&**beginning)
        };
        let by_beginning = || self.beginnings.iter().find(begins).map(|(_, rules)| rules);
        whole().or_else(by_beginning).unwrap_or(&self.usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(routing: &ModelRouting, id: &str, base: &str) -> Option<f64> {
        routing.by_names(&id.into(), &base.into()).overlap_weight
    }

    #[test]
    fn the_full_name_precedes_the_base_model_and_both_precede_the_longest_prefix() {
        let rules = |weight| ModelRules {
            overlap_weight: Some(weight),
            ..ModelRules::default()
        };
        let names = [
            ("*", 1.0),
            ("qwen*", 2.0),
            ("qwen/8b-*", 3.0),
            ("qwen/8b", 4.0),
            ("chat", 5.0),
        ];
        let routing =
            ModelRouting::new(names.map(|(name, weight)| (name.to_owned(), rules(weight))));
        for (id, base, want) in [
            ("llama", "llama", 1.0),
            ("qwen/30b", "qwen/30b", 2.0),
            ("qwen/8b-instruct", "qwen/8b-instruct", 3.0),
            ("qwen/8b", "qwen/8b", 4.0),
            ("chat", "qwen/8b", 5.0),
            // An adapter uses the rules of its base model.
            ("sql-lora", "qwen/8b", 4.0),
            ("sql-lora", "qwen/8b-instruct", 3.0),
        ] {
            assert_eq!(weight(&routing, id, base), Some(want), "{id} of {base}");
        }
        assert_eq!(
            weight(&ModelRouting::new([("a".to_owned(), rules(1.0))]), "b", "b"),
            None
        );
    }
}
