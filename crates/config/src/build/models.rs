//! Section `models`.

use std::collections::BTreeMap;

use super::problem_at;
use crate::{
    ChatTemplateSetting, ModelEntry, ModelRule, ModelsSection, TokenizerSetting, check::map_path,
    checked_value::CheckedValue, problem::ProblemDraft,
};

/// Builds the section; rules and aliases that could not work are problems.
pub(super) fn models(section: &CheckedValue, problems: &mut Vec<ProblemDraft>) -> ModelsSection {
    let defaults = section.key("defaults");
    let entries = section.key("entries").entries().iter();
    ModelsSection {
        defaults: model(defaults, None),
        entries: entries
            .map(|(id, own)| (id.clone(), model(defaults, Some(own))))
            .collect(),
        rules: rules(section.key("rules"), problems),
        aliases: aliases(section.key("aliases"), problems),
    }
}

fn model(defaults: &CheckedValue, own: Option<&CheckedValue>) -> ModelEntry {
    let of = |name: &str| {
        own.map(|own| own.key(name))
            .filter(|own| own.is_set())
            .unwrap_or_else(|| defaults.key(name))
    };
    let (tokenizer, template) = (of("tokenizer"), of("chat_template"));
    ModelEntry {
        tokenizer: match (tokenizer.text(), tokenizer.word()) {
            (Some(path), _) => TokenizerSetting::Directory(path.into()),
            (None, Some("engine")) => TokenizerSetting::Engine,
            (None, Some("none")) => TokenizerSetting::None,
            _ => TokenizerSetting::Auto,
        },
        chat_template: template.text().map_or(ChatTemplateSetting::Auto, |path| {
            ChatTemplateSetting::File(path.into())
        }),
    }
}

fn rules(list: &CheckedValue, problems: &mut Vec<ProblemDraft>) -> Vec<ModelRule> {
    let mut rules = Vec::new();
    for (at, entry) in list.items().iter().enumerate() {
        let path = |key: &str| format!("models.rules[{at}].{key}");
        let (pattern, rewrite) = (entry.key("match"), entry.key("rewrite"));
        if pattern.text().is_none_or(str::is_empty) && !pattern.failed {
            let draft = ProblemDraft::new(path("match"), "missing")
                .expected("a model's name; `*` stands for anything");
            problems.push(problem_at(draft, pattern, entry));
        }
        let fallback: Vec<String> = entry
            .key("fallback")
            .items()
            .iter()
            .filter_map(|item| item.text().map(str::to_owned))
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
            .chain(fallback.iter().map(|name| ("fallback", name.as_str())))
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
        rules.push(ModelRule {
            pattern: pattern.text().unwrap_or_default().to_owned(),
            rewrite: rewrite.text().map(str::to_owned),
            fallback,
        });
    }
    rules
}

/// Builds the aliases. An alias leads to a model in one step: chains could form a loop.
fn aliases(map: &CheckedValue, problems: &mut Vec<ProblemDraft>) -> BTreeMap<String, String> {
    let aliases: BTreeMap<String, String> = map
        .entries()
        .iter()
        .filter_map(|(name, model)| Some((name.clone(), model.text()?.to_owned())))
        .collect();
    for (name, entry) in map.entries() {
        let Some(model) = entry.text() else { continue };
        let wrong = if name.is_empty() || model.is_empty() {
            Some("an empty name".to_owned())
        } else if aliases.contains_key(model) {
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
    aliases
}
