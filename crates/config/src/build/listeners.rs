//! Relations between the listeners.

use settings::{CheckedValue, ListenSetting};

use super::tls;
use crate::problem::ProblemDraft;

/// Checks that a listener open to other machines was configured so explicitly.
pub(super) fn are_safe(root: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let (server, admin) = (root.key("server"), root.key("admin"));
    let open = server.key("insecure_open");
    for (path, place) in listeners(root) {
        let (is_protected, message, expected) = match path {
            "server.listen" | "server.also_listen" => (
                open.bool()
                    || open.failed
                    || tls::knows_its_clients(server)
                    || has_keys(root.key("tenants")),
                "can be reached from other machines and no API key protects it",
                "a loopback address, keys in `tenants.api_keys` or `tenants.keys_file`, or `server.insecure_open: true` (--insecure-open) to \
                 serve everyone",
            ),
            // Its answers reveal nothing.
            "server.probe_listen" => continue,
            _ => (
                has_tokens(admin) || tls::knows_its_clients(admin),
                "can be reached from other machines and no token protects it",
                "a loopback address, or `admin.token_file` (--admin-token-file)",
            ),
        };
        if !is_protected && place.listen_if_set().is_some_and(|it| !it.is_local()) {
            problems.push(problem(path, place, message, expected));
        }
    }
}

/// Returns whether clients need a key by the file; entries with a problem count.
fn has_keys(tenants: &CheckedValue) -> bool {
    let keys = tenants.key("api_keys");
    let services = tenants.key("key_validation");
    keys.failed
        || !keys.items().is_empty()
        || tenants.key("keys_file").is_set()
        || !services.items().is_empty()
}

/// Returns whether operators need a token; entries with a problem count.
fn has_tokens(admin: &CheckedValue) -> bool {
    let tokens = admin.key("tokens");
    admin.key("token_file").is_set() || tokens.failed || !tokens.items().is_empty()
}

/// Checks that no two listeners have the same address.
pub(super) fn are_distinct(root: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let mut earlier: Vec<(&str, &ListenSetting)> = Vec::new();
    for (path, place) in listeners(root) {
        let Some(listen) = place.listen_if_set() else {
            continue;
        };
        if matches!(listen, ListenSetting::Tcp(address) if address.port() == 0) {
            continue;
        }
        match earlier.iter().find(|(_, other)| *other == listen) {
            Some((other, _)) => {
                let message = format!("is also `{other}`");
                problems.push(problem(path, place, &message, "another port"));
            }
            None => earlier.push((path, listen)),
        }
    }
}

/// Returns the listeners without a problem of their own, each with the path of its key.
fn listeners(root: &CheckedValue) -> Vec<(&'static str, &CheckedValue)> {
    let server = root.key("server");
    let mut all = vec![("server.listen", server.key("listen"))];
    let more = server.key("also_listen").items();
    all.extend(more.iter().map(|place| ("server.also_listen", place)));
    all.extend([
        ("server.probe_listen", server.key("probe_listen")),
        ("admin.listen", root.key("admin").key("listen")),
        ("metrics.listen", root.key("metrics").key("listen")),
    ]);
    all.retain(|(_, place)| !place.failed);
    all
}

fn problem(path: &str, place: &CheckedValue, message: &str, expected: &str) -> ProblemDraft {
    let address = place.listen_if_set().map(ToString::to_string);
    let message = format!("{} {message}", address.unwrap_or_default());
    let draft = ProblemDraft::new(path, message).expected(expected);
    let draft = draft.value(place.shown()).in_context();
    match &place.origin {
        Some(origin) => draft.at(origin.clone()),
        None => draft,
    }
}
