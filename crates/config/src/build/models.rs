//! Section `models`: its rules and aliases, and what its entries inherit.

use std::collections::BTreeSet;

use settings::CheckedValue;

use super::problem_at;
use crate::{key_path::map_path, problem::ProblemDraft, sections::ModelsSection};

/// Checks rules and aliases: one that could not work is a problem.
pub(super) fn check(section: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    check_rules(section.key("rules"), problems);
    check_aliases(section.key("aliases"), problems);
}

/// Fills in the keys that an entry leaves out: they are those of `defaults`.
pub(super) fn inherit(models: &mut ModelsSection, section: &CheckedValue) {
    for (id, own) in section.key("entries").entries() {
        let Some(model) = models.entries.get_mut(id) else {
            continue;
        };
        if !own.key("tokenizer").is_set() {
            model.tokenizer.clone_from(&models.defaults.tokenizer);
        }
        if !own.key("chat_template").is_set() {
            model
                .chat_template
                .clone_from(&models.defaults.chat_template);
        }
    }
}

fn check_rules(list: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    for (at, entry) in list.items().iter().enumerate() {
        let path = |key: &str| format!("models.rules[{at}].{key}");
        let (pattern, rewrite) = (entry.key("match"), entry.key("rewrite"));
        if pattern.text().is_none_or(str::is_empty) && !pattern.failed {
            let draft = ProblemDraft::new(path("match"), "missing")
                .expected("a model's name; `*` stands for anything");
            problems.push(problem_at(draft, pattern, entry));
        }
        let fallback: Vec<&str> = entry
            .key("fallback")
            .items()
            .iter()
            .filter_map(CheckedValue::text)
            .collect();
        let inner = entry.key("rewrite").failed || entry.key("fallback").failed || entry.failed;
        if rewrite.text().is_none() && fallback.is_empty() && !inner {
            let draft =
                ProblemDraft::new(format!("models.rules[{at}]"), "the rule changes nothing");
            problems.push(problem_at(
                draft.expected("rewrite, fallback or both"),
                entry,
                list,
            ));
        }
        for (key, name) in rewrite
            .text()
            .map(|name| ("rewrite", name))
            .into_iter()
            .chain(fallback.iter().map(|name| ("fallback", *name)))
        {
            if name.is_empty() || name.contains('*') {
                let draft = ProblemDraft::new(path(key), format!("`{name}` is no model"))
                    .value(name.into());
                problems.push(problem_at(
                    draft.expected("the name of one model"),
                    entry.key(key),
                    entry,
                ));
            }
        }
    }
}

/// Checks the aliases. An alias leads to a model in one step: chains could form a loop.
fn check_aliases(map: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let aliases: BTreeSet<&str> = map
        .entries()
        .iter()
        .filter(|(_, entry)| entry.text().is_some())
        .map(|(name, _)| name.as_str())
        .collect();
    for (name, entry) in map.entries() {
        let Some(model) = entry.text() else { continue };
        let wrong = if name.is_empty() || model.is_empty() {
            Some("an empty name".to_owned())
        } else if aliases.contains(model) {
            Some(format!("`{model}` is an alias itself"))
        } else {
            None
        };
        if let Some(wrong) = wrong {
            let draft =
                ProblemDraft::new(map_path("models.aliases", name), wrong).value(model.into());
            problems.push(problem_at(draft.expected("the id of a model"), entry, map));
        }
    }
}
