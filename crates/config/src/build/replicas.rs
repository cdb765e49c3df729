//! Checks of section `replicas`.

use settings::{CheckedValue, Value};

use super::problem_at;
use crate::problem::ProblemDraft;

/// Schemes of a peer's URL.
const SCHEMES: [&str; 2] = ["http://", "https://"];

/// Checks that the mode has what it needs.
pub(super) fn check(section: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let (mode, peers) = (section.key("mode"), section.key("peers"));
    for (at, entry) in peers.items().iter().enumerate() {
        let text = entry.text().unwrap_or_default();
        if entry.failed || is_peer(text) {
            continue;
        }
        let path = format!("replicas.peers[{at}]");
        let draft = ProblemDraft::new(path, format!("`{text}` is no admin listener"))
            .value(text.into())
            .expected("http://HOST:PORT, https://HOST:PORT or dns:NAME:PORT");
        problems.push(problem_at(draft, entry, peers));
    }
    if mode.word() == Some("peers") && peers.items().is_empty() && !peers.failed {
        let message = "missing, and `replicas.mode` is peers";
        let draft = ProblemDraft::new("replicas.peers", message)
            .expected("the admin listeners of the routers, such as [http://router-2:9191]");
        problems.push(problem_at(draft, peers, mode));
    }
    for name in ["namespace", "component"] {
        let key = section.key(name);
        let text = key.text().unwrap_or_default();
        if !key.failed && !is_name(text) {
            let draft =
                ProblemDraft::new(format!("replicas.{name}"), format!("`{text}` is no name"))
                    .value(text.into())
                    .expected("1 to 64 letters, digits, - and _");
            problems.push(problem_at(draft, key, section));
        }
    }
}

/// Fills in the mode that sharing of load needs.
pub(super) fn resolve(section: &mut CheckedValue) {
    let implied = section.key("load_sync").bool() && !section.key("mode").is_set();
    if implied {
        section.key_mut("mode").value = Value::Word("nats");
    }
}

fn is_peer(text: &str) -> bool {
    let Some(name) = text.strip_prefix("dns:") else {
        let host = SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme));
        return host.is_some_and(|host| !host.is_empty() && !host.starts_with('/'));
    };
    let port = |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok();
    name.rsplit_once(':').is_some_and(port)
}

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}
