//! The manual's rules of sizing.

use contract_id::contract;

const MANUAL: &str = include_str!("../../../../../docs/sizing.md");

#[test]
#[contract("CK86")]
fn the_manual_names_every_rule_of_sizing() {
    for rule in [
        "2 to 10 KB",
        "200 bytes",
        "`max_entries` >= prefixes x backends x 2",
        "128 tokens",
    ] {
        assert!(
            MANUAL.contains(rule),
            "docs/sizing.md says nothing of {rule}"
        );
    }
}
