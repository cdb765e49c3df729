//! The findings of one subject, and their conversion to check results.

use api::{CheckResult, CheckStatus};

/// Result of one check before it has an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) status: CheckStatus,
    found: Option<String>,
    expected: Option<String>,
    message: String,
    fix: Option<String>,
}

impl Finding {
    fn new(status: CheckStatus, message: impl Into<String>, fix: Option<String>) -> Self {
        Self {
            status,
            found: None,
            expected: None,
            message: message.into(),
            fix,
        }
    }

    pub(crate) fn ok(message: impl Into<String>) -> Self {
        Self::new(CheckStatus::Ok, message, None)
    }

    pub(crate) fn skip(reason: impl Into<String>) -> Self {
        Self::new(CheckStatus::Skip, reason, None)
    }

    pub(crate) fn warn(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(CheckStatus::Warn, message, Some(fix.into()))
    }

    pub(crate) fn fail(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(CheckStatus::Fail, message, Some(fix.into()))
    }

    pub(crate) fn found(self, found: impl ToString) -> Self {
        Self {
            found: Some(found.to_string()),
            ..self
        }
    }

    pub(crate) fn expected(self, expected: impl ToString) -> Self {
        Self {
            expected: Some(expected.to_string()),
            ..self
        }
    }
}

/// Findings by check.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<(&'static str, Finding)>);

impl Findings {
    /// Records a finding; the first one for an id stays.
    pub(crate) fn set(&mut self, id: &'static str, finding: Finding) {
        if self.status(id).is_none() {
            self.0.push((id, finding));
        }
    }

    pub(crate) fn status(&self, id: &str) -> Option<CheckStatus> {
        self.0
            .iter()
            .find(|(known, _)| *known == id)
            .map(|(_, finding)| finding.status)
    }

    pub(crate) fn failed(&self, id: &str) -> bool {
        self.status(id) == Some(CheckStatus::Fail)
    }

    /// Skips every check in `ids` that has no finding yet.
    pub(crate) fn skip_rest(&mut self, ids: &[&'static str], reason: &str) {
        for id in ids {
            self.set(id, Finding::skip(reason));
        }
    }

    /// Turns failures in `ids` into skips: a later finding explains them.
    pub(crate) fn explain_failures(&mut self, ids: &[&'static str], reason: &str) {
        for (id, finding) in &mut self.0 {
            if ids.contains(id) && finding.status == CheckStatus::Fail {
                *finding = Finding::skip(reason);
            }
        }
    }

    /// Returns the results of `ids`, in that order.
    pub(crate) fn into_checks(mut self, ids: &[&'static str]) -> Vec<CheckResult> {
        self.skip_rest(ids, "nothing was found that tells");
        let check = |id: &&'static str| {
            let at = self.0.iter().position(|(known, _)| known == id)?;
            let (
                id,
                Finding {
                    status,
                    found,
                    expected,
                    message,
                    fix,
                },
            ) = self.0.swap_remove(at);
            let (found, expected, fix) = (found.map(plain), expected.map(plain), fix.map(plain));
            Some(CheckResult {
                id: id.into(),
                status,
                found,
                expected,
                message: plain(message),
                fix,
            })
        };
        ids.iter().filter_map(check).collect()
    }
}

/// Removes control characters: much of a text comes from a peer and must not steer the terminal
/// that shows it.
fn plain(text: String) -> String {
    if text.chars().any(char::is_control) {
        text.replace(char::is_control, " ")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S69")]
    fn control_characters_of_a_peer_are_removed() {
        let mut findings = Findings::default();
        findings.set(
            "reachable",
            Finding::fail("said \u{1b}[31mred\r\n", "look\u{7}")
                .found("\u{9b}1m")
                .expected("x\0"),
        );
        let check = findings.into_checks(&["reachable"]).remove(0);
        assert_eq!(
            (check.message.as_str(), check.fix.as_deref()),
            ("said  [31mred  ", Some("look "))
        );
        assert_eq!(
            (check.found.as_deref(), check.expected.as_deref()),
            (Some(" 1m"), Some("x "))
        );
    }

    #[test]
    fn an_explanation_withdraws_only_failures() {
        let mut findings = Findings::default();
        findings.set("sequence", Finding::fail("lost", "look"));
        findings.set("clock", Finding::ok("fine"));
        findings.explain_failures(&["sequence", "clock", "replay"], "because");
        assert_eq!(
            (findings.status("sequence"), findings.status("clock")),
            (Some(CheckStatus::Skip), Some(CheckStatus::Ok))
        );
        assert_eq!(findings.status("replay"), None);
    }
}
