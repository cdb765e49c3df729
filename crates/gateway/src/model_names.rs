//! Model name rules: from a requested name to the models that may serve it.
//!
//! **Invariant**: a name leads to at least one model and to no model twice, through at most one
//! rule and one alias.

use std::{collections::BTreeMap, sync::Arc};

use config::{ModelRule, ModelsSection};

/// Aliases and rules of the configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelNames {
    /// The first match applies.
    pub(crate) rules: Vec<ModelRule>,
    /// Aliases of models.
    pub(crate) aliases: BTreeMap<String, String>,
}

impl ModelNames {
    pub(crate) fn of(models: &ModelsSection) -> Self {
        Self {
            rules: models.rules.clone(),
            aliases: models.aliases.clone(),
        }
    }

    /// Returns whether there are no rules and no aliases.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.aliases.is_empty()
    }

    /// Returns the model that an alias stands for, or the name itself.
    pub(crate) fn unaliased<'a>(&'a self, name: &'a str) -> &'a str {
        self.aliases.get(name).map_or(name, String::as_str)
    }

    /// Returns the models for a name, in the order in which they are tried.
    pub(crate) fn chain(&self, name: &str) -> Vec<Arc<str>> {
        let own = self.unaliased(name);
        let rule = |name: &str| self.rules.iter().find(|rule| matches(&rule.pattern, name));
        let rule = rule(name).or_else(|| rule(own));
        let first = rule.and_then(|rule| rule.rewrite.as_deref()).unwrap_or(own);
        let more = rule
            .map(|rule| rule.fallback.as_slice())
            .unwrap_or_default();
        let mut chain: Vec<Arc<str>> = Vec::with_capacity(1 + more.len());
        for model in std::iter::once(first).chain(more.iter().map(String::as_str)) {
            let model = self.unaliased(model);
            if !chain.iter().any(|before| **before == *model) {
                chain.push(Arc::from(model));
            }
        }
        chain
    }
}

/// Returns whether a name matches a pattern in which `*` stands for anything, including nothing.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut left) = name.strip_prefix(start) else {
        return false;
    };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return left.ends_with(part);
        }
        // The first match is as good as any later one: it leaves the most room for the rest.
        match left.find(part) {
            Some(at) => left = left.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn names() -> ModelNames {
        let rule = |pattern: &str, rewrite: Option<&str>, fallback: &[&str]| ModelRule {
            pattern: pattern.to_owned(),
            rewrite: rewrite.map(str::to_owned),
            fallback: fallback.iter().map(|name| (*name).to_owned()).collect(),
        };
        ModelNames {
            rules: vec![
                rule("gpt-4*", Some("big"), &["small", "big"]),
                rule("*-mini", Some("small"), &[]),
                rule("qwen", None, &["nick"]),
            ],
            aliases: [("nick", "small"), ("q", "qwen")]
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .into(),
        }
    }

    #[test]
    #[contract("V44")]
    fn a_name_resolves_to_models_in_order_of_rule_and_fallbacks() {
        let chain = |name: &str| {
            names()
                .chain(name)
                .iter()
                .map(|model| model.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(chain("other"), ["other"]);
        assert_eq!(chain("gpt-4o-mini"), ["big", "small"]);
        assert_eq!(chain("o1-mini"), ["small"]);
        assert_eq!(chain("qwen"), ["qwen", "small"]);
        assert_eq!(chain("q"), ["qwen", "small"]);
        assert_eq!(chain("nick"), ["small"]);
    }

    #[test]
    #[contract("S66")]
    fn a_star_matches_any_text_at_any_position() {
        for (pattern, name, fits) in [
            ("*", "", true),
            ("*", "any", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*b", "ab", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abdce", true),
            ("a*b*b", "ab", false),
            ("**", "x", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("ü*ß", "üaß", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
