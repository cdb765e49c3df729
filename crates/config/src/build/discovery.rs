//! Section `discovery`.

use super::problem_at;
use crate::{
    DiscoverySection, DnsName, ListenSetting,
    checked_value::{CheckedValue, Value},
    problem::ProblemDraft,
};

pub(super) fn discovery(
    section: &CheckedValue,
    problems: &mut Vec<ProblemDraft>,
) -> DiscoverySection {
    let names = section.key("dns").items().iter().enumerate();
    DiscoverySection {
        file: section.key("file").text().map(Into::into),
        dns: names
            .filter_map(|(at, name)| dns(name, at, problems))
            .collect(),
        state_file: section.key("state_file").text().map(Into::into),
        empty_list_grace: section.key("empty_list_grace").duration(),
        flap_damping: section.key("flap_damping").duration(),
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

fn dns(name: &CheckedValue, at: usize, problems: &mut Vec<ProblemDraft>) -> Option<DnsName> {
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
    let worker = match &name.key("worker").value {
        Value::Unset => Some(serde_json::Map::new()),
        Value::Free(serde_json::Value::Object(entry)) => Some(entry.clone()),
        _ => None,
    };
    if worker.is_none() {
        let draft = ProblemDraft::new(path("worker"), "is no mapping");
        problems.push(problem_at(
            draft.expected("keys of an entry of workers, such as {type: vllm}"),
            name.key("worker"),
            name,
        ));
    }
    let port = name
        .key("port")
        .int_or_word()
        .and_then(|port| u16::try_from(port).ok());
    let server = name.key("server");
    let asked = match &server.value {
        Value::Listen(ListenSetting::Tcp(address)) => Some(*address),
        Value::Listen(ListenSetting::Unix(_)) => {
            let draft = ProblemDraft::new(path("server"), "is no address of a name server");
            problems.push(problem_at(
                draft.expected("an address such as 127.0.0.1:8600"),
                server,
                name,
            ));
            None
        }
        _ => None,
    };
    Some(DnsName {
        host: host?.to_owned(),
        port,
        server: asked,
        interval: name.key("interval").duration(),
        worker: worker?,
    })
}

/// Checks for labels of letters, digits, hyphens and underscores: SRV names begin with underscores.
fn is_host(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(plain);
    text.len() <= 253 && text.trim_end_matches('.').split('.').all(label)
}
