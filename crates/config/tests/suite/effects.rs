//! Every setting acts, is refused, or warns: the table of what shows it.
//!
//! `setting_effects.txt` has one row for each key of the schema, in its order:
//!
//! - `KEY FILE::TEST`: this test shows what changes with the key;
//! - `KEY warns FILE::TEST`: a start warns that the key has no effect, which this test shows;
//! - `KEY refused`: the key is of a later version, and only its default is accepted.
//!
//! So no key acts without a test that would notice if it did not.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const TABLE: &str = include_str!("../setting_effects.txt");

/// Keys of the reference page with their descriptions, in its order.
fn keys() -> Vec<(String, String)> {
    let row = |line: &str| {
        let (key, rest) = line.strip_prefix("| `")?.split_once('`')?;
        Some((key.to_owned(), rest.to_owned()))
    };
    let page = config::reference_page();
    page.lines().filter_map(row).collect()
}

/// The rows of the table: key, and what shows it.
fn rows() -> Vec<(&'static str, &'static str)> {
    let row = |line: &'static str| line.split_once(' ').expect("a key and what shows it");
    TABLE.lines().map(row).collect()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns whether the file declares a test of this name.
fn declares_test(source: &str, name: &str) -> bool {
    let declaration = format!("fn {name}(");
    let mut attributes = Vec::new();
    for line in source.lines().map(str::trim) {
        let signature = line.strip_prefix("async ").unwrap_or(line);
        if signature.starts_with(&declaration) {
            return attributes
                .iter()
                .any(|it: &&str| it.starts_with("#[test]") || it.starts_with("#[tokio::test"));
        }
        if line.starts_with("#[") || line.starts_with("//") {
            attributes.push(line);
        } else if line.ends_with('}') || line.ends_with(';') {
            attributes.clear();
        }
    }
    false
}

#[test]
fn every_key_has_one_row_in_the_order_of_the_reference_page() {
    let keys = keys();
    assert!(keys.len() > 250, "{} keys", keys.len());
    let named: Vec<&str> = rows().iter().map(|(key, _)| *key).collect();
    let keys: Vec<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
    let missing: Vec<_> = keys.iter().filter(|key| !named.contains(key)).collect();
    let unknown: Vec<_> = named.iter().filter(|key| !keys.contains(key)).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "without a row in setting_effects.txt: {missing:?}; rows of no key: {unknown:?}"
    );
    assert_eq!(named, keys, "in the order of docs/configuration.md");
}

#[test]
fn a_row_names_a_test_that_exists_or_says_that_the_key_is_refused() {
    let described: BTreeMap<String, String> = keys().into_iter().collect();
    let mut sources: BTreeMap<&str, String> = BTreeMap::new();
    for (key, shown_by) in rows() {
        let is_later = described
            .get(key)
            .is_some_and(|text| text.contains("*Not built yet.*"));
        assert_eq!(shown_by == "refused", is_later, "{key}: {shown_by}");
        if is_later {
            continue;
        }
        let place = shown_by.strip_prefix("warns ").unwrap_or(shown_by);
        let (file, test) = place
            .split_once("::")
            .unwrap_or_else(|| panic!("{key}: `{shown_by}` is no FILE::TEST"));
        let source = sources.entry(file).or_insert_with(|| {
            fs::read_to_string(repository().join(file))
                .unwrap_or_else(|error| panic!("{key}: {file}: {error}"))
        });
        assert!(
            declares_test(source, test),
            "{key}: {file} has no test {test}"
        );
    }
}
