//! Relations between the listeners.

use settings::{CheckedValue, ListenSetting};

use super::tls;
use crate::problem::ProblemDraft;

/// Checks that a listener open to other machines was configured so explicitly.
pub(super) fn are_safe(root: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let exposed = |listen: &CheckedValue| !listen.failed && !listen.listen().is_local();
    let file = |path: &str, listen: &CheckedValue, message: &str, expected: &str| {
        let draft =
            ProblemDraft::new(path, format!("{} {message}", listen.listen())).expected(expected);
        let draft = draft.value(listen.shown()).in_context();
        match &listen.origin {
            Some(origin) => draft.at(origin.clone()),
            None => draft,
        }
    };
    let (server, admin) = (root.key("server"), root.key("admin"));
    let (data, own) = (server.key("listen"), admin.key("listen"));
    let open = server.key("insecure_open");
    for place in std::iter::once(data).chain(server.key("also_listen").items()) {
        if exposed(place) && !open.bool() && !open.failed && !tls::knows_its_clients(server) {
            problems.push(file(
                if std::ptr::eq(place, data) { "server.listen" } else { "server.also_listen" },
                place,
                "can be reached from other machines and no API key protects it",
                "a loopback address, or `server.insecure_open: true` (--insecure-open) to serve everyone",
            ));
        }
    }
    let token = admin.key("token_file");
    if exposed(own) && !token.is_set() && !tls::knows_its_clients(admin) {
        problems.push(file(
            "admin.listen",
            own,
            "can be reached from other machines and no token protects it",
            "a loopback address, or `admin.token_file` (--admin-token-file)",
        ));
    }
    let any_port = matches!(data.listen(), ListenSetting::Tcp(address) if address.port() == 0);
    if data.listen() == own.listen() && !any_port && !data.failed && !own.failed {
        problems.push(file(
            "admin.listen",
            own,
            "is also `server.listen`",
            "another port",
        ));
    }
}
