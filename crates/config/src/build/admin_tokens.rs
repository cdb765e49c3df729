//! Checks of list `admin.tokens`.

use std::collections::HashMap;

use settings::{CheckedValue, Value};

use super::problem_at;
use crate::problem::ProblemDraft;

/// Longest name of an owner, in bytes.
const MAX_NAME: usize = 64;

/// Checks that each entry has a name of its own, and its token in one place. Whether a token is long
/// enough is known where its file is read.
pub(super) fn check(list: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let mut names = HashMap::new();
    for (at, entry) in list.items().iter().enumerate() {
        let path = format!("admin.tokens[{at}]");
        let check = TokenCheck { path: &path, entry };
        problems.extend(check.name());
        problems.extend(check.token());
        let Some(name) = entry.key("name").text() else {
            continue;
        };
        let first = *names.entry(name).or_insert(at);
        if first != at {
            let message = format!("the name of admin.tokens[{first}] too");
            problems.push(
                check
                    .problem("name", message, "a name of its own")
                    .in_context(),
            );
        }
    }
}

/// An entry, and its path in problems.
struct TokenCheck<'a> {
    path: &'a str,
    entry: &'a CheckedValue,
}

impl TokenCheck<'_> {
    fn problem(&self, key: &str, message: impl Into<String>, expected: &str) -> ProblemDraft {
        let value = self.entry.key(key);
        let draft = ProblemDraft::new(format!("{}.{key}", self.path), message).expected(expected);
        let draft = match value.value {
            Value::Unset => draft,
            _ => draft.value(value.shown()),
        };
        problem_at(draft, value, self.entry)
    }

    /// A name has no space, so none is that of a caller without an entry.
    fn name(&self) -> Option<ProblemDraft> {
        const EXPECTED: &str = "at most 64 letters, digits, `-`, `_`, `.` or `@`";
        let name = self.entry.key("name");
        if name.failed {
            return None;
        }
        let text = name.text().unwrap_or_default();
        if text.is_empty() {
            return Some(self.problem("name", "missing", EXPECTED));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
        let fits = text.len() <= MAX_NAME && text.bytes().all(is_plain);
        (!fits).then(|| self.problem("name", "cannot stand in the audit log", EXPECTED))
    }

    fn token(&self) -> Option<ProblemDraft> {
        const EITHER: &str = "either `token` or `token_file`";
        let (token, file) = (self.entry.key("token"), self.entry.key("token_file"));
        if token.failed || file.failed {
            return None;
        }
        match (token.is_set(), file.is_set()) {
            (false, false) => Some(self.problem("token", "missing", EITHER)),
            (true, true) => {
                let draft = self.problem("token_file", "set beside `token`", EITHER);
                Some(draft.in_context())
            }
            (true, false) | (false, true) => None,
        }
    }
}
