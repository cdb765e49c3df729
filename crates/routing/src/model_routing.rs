//! Routing settings of single models that differ from the general ones (`routing.models`).
//!
//! A request's own headers take precedence over them; this module does not read headers.

use std::collections::HashMap;

use crate::ModelRoutingEntry;

/// The settings of models, by name.
#[derive(Clone, Debug, Default)]
pub struct ModelRouting {
    named: HashMap<Box<str>, ModelRoutingEntry>,
    /// By name prefix, the longest first.
    beginnings: Vec<(Box<str>, ModelRoutingEntry)>,
    usual: ModelRoutingEntry,
}

impl ModelRouting {
    /// Creates the table; a `*` at the end of a name matches anything.
    pub fn new(entries: &[(String, ModelRoutingEntry)]) -> Self {
        let mut routing = Self::default();
        for (name, entry) in entries {
            let entry = entry.clone();
            match name.strip_suffix('*') {
                Some(beginning) => routing.beginnings.push((beginning.into(), entry)),
                None => drop(routing.named.insert(name.as_str().into(), entry)),
            }
        }
        routing
            .beginnings
            .sort_by_key(|(beginning, _)| std::cmp::Reverse(beginning.len()));
        routing
    }

    /// Returns the settings of a model: by its own name, else by the base model's.
    pub fn of(&self, id: &str, base: &str) -> &ModelRoutingEntry {
        let whole = || self.named.get(id).or_else(|| self.named.get(base));
        let begins = |(beginning, _): &&(Box<str>, ModelRoutingEntry)| {
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
        routing.of(id, base).overlap_weight
    }

    #[test]
    fn the_full_name_precedes_the_base_model_and_both_precede_the_longest_prefix() {
        let entry = |name: &str, weight| {
            let entry = ModelRoutingEntry {
                overlap_weight: Some(weight),
                ..ModelRoutingEntry::default()
            };
            (name.to_owned(), entry)
        };
        let names = [
            ("*", 1.0),
            ("qwen*", 2.0),
            ("qwen/8b-*", 3.0),
            ("qwen/8b", 4.0),
            ("chat", 5.0),
        ];
        let routing = ModelRouting::new(&names.map(|(name, weight)| entry(name, weight)));
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
            weight(&ModelRouting::new(&[entry("a", 1.0)]), "b", "b"),
            None
        );
    }
}
