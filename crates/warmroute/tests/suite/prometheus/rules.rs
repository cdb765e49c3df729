//! The shipped rules and the shipped example.

use std::{process::Command, time::Duration};

use contract_id::contract;

use super::queries;

/// The rules that operators load.
pub(crate) const ALERTS: &str = include_str!("../../../../../deploy/prometheus/alerts.yml");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus");

#[test]
#[contract("CK72")]
fn the_shipped_rules_and_the_example_are_accepted_by_prometheus() {
    test_programs::require!(Prometheus);
    for (what, file) in [("rules", "alerts.yml"), ("config", "scrape.yml")] {
        let path = format!("{FOLDER}/{file}");
        let mut check = Command::new("promtool");
        let output = test_programs::limit::output(
            check.args(["check", what, &path]),
            Duration::from_secs(90),
        );
        let output_text = [output.stdout, output.stderr]
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .concat();
        assert!(
            output.status.success() && output_text.contains("SUCCESS"),
            "{file}: {output_text}"
        );
    }
}

#[test]
#[contract("CK72")]
fn the_documented_alerts_are_shipped_verbatim() {
    for query in [queries::FALLBACK_ACTIVE, queries::CONSUMER_GONE] {
        assert!(
            ALERTS
                .lines()
                .any(|line| line.trim() == format!("expr: {query}")),
            "{query}"
        );
    }
}
