//! List `pre_routing_hooks`.

use super::problem_at;
use crate::{
    HookEntry,
    checked_value::{CheckedValue, Value},
    problem::ProblemDraft,
};

/// Returns the hooks in their order.
pub(super) fn hooks(list: &CheckedValue, problems: &mut Vec<ProblemDraft>) -> Vec<HookEntry> {
    let mut hooks: Vec<HookEntry> = Vec::new();
    for (at, entry) in list.items().iter().enumerate() {
        let path = |key: &str| format!("pre_routing_hooks[{at}].{key}");
        let (name, url) = (entry.key("name"), entry.key("url"));
        let text = name.text().unwrap_or_default();
        if text.is_empty() && !name.failed {
            let draft = ProblemDraft::new(path("name"), "missing").expected("the hook's name");
            problems.push(problem_at(draft, name, entry));
        } else if !name.failed && !is_name(text) {
            let draft =
                ProblemDraft::new(path("name"), format!("`{text}` cannot stand in a header"))
                    .value(text.into());
            let draft = draft.expected("letters, digits, - and _ only");
            problems.push(problem_at(draft, name, entry));
        }
        if hooks.iter().any(|other| other.name == text) {
            let draft = ProblemDraft::new(path("name"), format!("a second hook `{text}`"))
                .value(text.into());
            problems.push(problem_at(draft.expected("another name"), name, entry));
        }
        let Value::WorkerUrl { url, .. } = &url.value else {
            if !url.failed {
                let draft = ProblemDraft::new(path("url"), "missing")
                    .expected("a URL such as http://127.0.0.1:9000/check");
                problems.push(problem_at(draft, url, entry));
            }
            continue;
        };
        let on_reject = entry.key("on_reject");
        hooks.push(HookEntry {
            name: text.to_owned(),
            url: url.clone(),
            timeout: entry.key("timeout").duration(),
            allow_on_error: entry.key("on_error").word() == Some("allow"),
            reject_status: u16::try_from(on_reject.key("status").int()).unwrap_or(403),
            reject_message: on_reject.key("message").text().map(str::to_owned),
            models: entry
                .key("models")
                .items()
                .iter()
                .filter_map(|item| item.text().map(str::to_owned))
                .collect(),
        });
    }
    hooks
}

fn is_name(text: &str) -> bool {
    text.len() <= 64
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}
