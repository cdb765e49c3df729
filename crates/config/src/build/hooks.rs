//! Checks of list `pre_routing_hooks`.

use settings::{CheckedValue, Value};

use super::problem_at;
use crate::problem::ProblemDraft;

/// Checks that each hook has a name of its own and a URL.
pub(super) fn check(list: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let mut names: Vec<&str> = Vec::new();
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
        if names.contains(&text) {
            let draft = ProblemDraft::new(path("name"), format!("a second hook `{text}`"))
                .value(text.into());
            problems.push(problem_at(draft.expected("another name"), name, entry));
        }
        if url.value != Value::Unset {
            names.push(text);
        } else if !url.failed {
            let draft = ProblemDraft::new(path("url"), "missing")
                .expected("a URL such as http://127.0.0.1:9000/check");
            problems.push(problem_at(draft, url, entry));
        }
    }
}

fn is_name(text: &str) -> bool {
    text.len() <= 64
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}
