//! Checks of section `discovery`.

use settings::{CheckedValue, ListenSetting, Value};

use super::problem_at;
use crate::problem::ProblemDraft;

/// Checks the entries of `dns`.
pub(super) fn check(section: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    for (at, name) in section.key("dns").items().iter().enumerate() {
        check_dns(name, at, problems);
    }
}

/// Hides the keys in the workers' template, whose section hides its own.
pub(super) fn hide_keys(section: &mut CheckedValue) {
    for name in section.key_mut("dns").items_mut() {
        if let Value::Free(serde_json::Value::Object(entry)) = &mut name.key_mut("worker").value
            && let Some(key) = entry.get_mut("api_key")
        {
            *key = "***".into();
        }
    }
}

fn check_dns(name: &CheckedValue, at: usize, problems: &mut Vec<ProblemDraft>) {
    let path = |key: &str| format!("discovery.dns[{at}].{key}");
    let host = name.key("host").text().filter(|host| is_host(host));
    if host.is_none() && !name.key("host").failed {
        let draft = ProblemDraft::new(path("host"), "is missing or no name of a host");
        problems.push(problem_at(
            draft.expected("a name such as engines.example.org"),
            name.key("host"),
            name,
        ));
    }
    let worker = &name.key("worker").value;
    if !matches!(
        worker,
        Value::Unset | Value::Free(serde_json::Value::Object(_))
    ) {
        let draft = ProblemDraft::new(path("worker"), "is no mapping");
        problems.push(problem_at(
            draft.expected("keys of an entry of workers, such as {type: vllm}"),
            name.key("worker"),
            name,
        ));
    }
    let server = name.key("server");
    if let Some(ListenSetting::Unix(_)) = server.listen_if_set() {
        let draft = ProblemDraft::new(path("server"), "is no address of a name server");
        problems.push(problem_at(
            draft.expected("an address such as 127.0.0.1:8600"),
            server,
            name,
        ));
    }
}

/// Checks for labels of letters, digits, hyphens and underscores: SRV names begin with underscores.
fn is_host(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(plain);
    text.len() <= 253 && text.trim_end_matches('.').split('.').all(label)
}
