//! TLS: checks keys that belong together.

use settings::{CheckedValue, Setting};

use super::problem_at;
use crate::{problem::ProblemDraft, sections::ListenerTls};

/// Checks listeners for incomplete TLS: a certificate without its key, for example, would silently
/// leave connections plain.
pub(super) fn listeners_are_whole(root: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    for name in ["server", "admin"] {
        let section = root.key(name).key("tls");
        let has = |key: &str| section.key(key).text().is_some();
        let missing = match (has("cert"), has("key"), has("client_ca")) {
            (true, false, _) => "key",
            (false, true, _) | (false, false, true) => "cert",
            _ => continue,
        };
        if section.key("cert").failed || section.key("key").failed {
            continue;
        }
        let draft = ProblemDraft::new(
            format!("{name}.tls.{missing}"),
            format!("`{name}.tls` has no `{missing}`"),
        );
        let draft = draft.expected("`cert` and `key` together").in_context();
        problems.push(problem_at(draft, section.key(missing), section));
    }
}

/// Checks listeners for rules about client certificates that nothing asks for.
pub(super) fn client_rules_have_an_authority(
    root: &CheckedValue,
    problems: &mut Vec<ProblemDraft>,
) {
    for name in ["server", "admin"] {
        let section = root.key(name).key("tls");
        let authority = section.key("client_ca");
        if authority.failed || authority.text().is_some() {
            continue;
        }
        let (crl, names) = (section.key("client_crl"), section.key("client_names"));
        let idle = [
            ("client_crl", crl, crl.text().is_some()),
            ("client_names", names, !names.items().is_empty()),
        ];
        for (key, value, _) in idle.into_iter().filter(|(_, _, is_set)| *is_set) {
            let message = format!("`{name}.tls` asks clients for no certificate");
            let draft = ProblemDraft::new(format!("{name}.tls.{key}"), message)
                .expected("`client_ca` beside it")
                .in_context();
            problems.push(problem_at(draft, value, section));
        }
    }
}

/// Returns whether clients need a certificate.
pub(super) fn knows_its_clients(section: &CheckedValue) -> bool {
    ListenerTls::read(section.key("tls")).is_some_and(|tls| tls.client_ca.is_some())
}

/// Checks `workers[].tls` of the worker at index `at`.
pub(super) fn check_worker(
    entry: &CheckedValue,
    url: &str,
    at: usize,
    problems: &mut Vec<ProblemDraft>,
) {
    let section = entry.key("tls");
    let skip = section.key("insecure_skip_verify");
    let (has_ca, insecure_skip_verify) = (section.key("ca").text().is_some(), skip.bool());
    let encrypted = url
        .get(..8)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"));
    let idle = if has_ca {
        Some("ca")
    } else {
        insecure_skip_verify.then_some("insecure_skip_verify")
    };
    if let Some(key) = idle.filter(|_| !encrypted) {
        let message = "the worker is not encrypted: nothing of `tls` applies";
        let draft = ProblemDraft::new(format!("workers[{at}].tls.{key}"), message)
            .expected("an https:// URL, or no `tls`");
        problems.push(problem_at(draft.in_context(), section.key(key), entry));
    }
    if has_ca && insecure_skip_verify {
        let message = "`insecure_skip_verify` believes any certificate, and `ca` is for those that are checked";
        let draft = ProblemDraft::new(format!("workers[{at}].tls.insecure_skip_verify"), message)
            .expected("one of the two");
        problems.push(problem_at(draft.in_context(), skip, entry));
    }
}
