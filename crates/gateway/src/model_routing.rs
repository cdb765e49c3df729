//! What single models have otherwise than the configuration says for all (`routing.models`).
//!
//! A request's own headers go before all of it; they are not looked at here.

use std::{collections::HashMap, sync::Arc};

use fleet::ModelView;
use routing::{MediumWeights, Policy};

/// What one model has otherwise; `None` = as for all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelRules {
    /// The policy; also for either pool whose own one is unset.
    pub policy: Option<Policy>,
    /// The policy among those that compute prompts for others.
    pub prefill_policy: Option<Policy>,
    /// The policy among those that generate, where others compute prompts.
    pub decode_policy: Option<Policy>,
    /// Weight of cached prefixes.
    pub overlap_weight: Option<f64>,
    /// 0 takes the lowest cost, above 0 draws by cost.
    pub temperature: Option<f64>,
    /// A worker whose KV cache is fuller than this share gets none of its requests.
    pub busy_threshold: Option<f64>,
    /// What a cached block is worth by where it sits.
    pub medium_weights: Option<MediumWeights>,
}

/// The rules of models, by name.
#[derive(Clone, Debug, Default)]
pub struct ModelRouting {
    named: HashMap<Box<str>, ModelRules>,
    /// By how names begin, the longest first.
    beginnings: Vec<(Box<str>, ModelRules)>,
    usual: ModelRules,
}

impl ModelRouting {
    /// Rules by name; a `*` at a name's end stands for anything.
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

    /// The rules of a model that requests may name: by that name, else by the base model's.
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
    fn the_whole_name_counts_before_the_base_models_and_both_before_the_longest_beginning() {
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
            // An adapter goes by its base model.
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
