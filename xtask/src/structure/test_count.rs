//! The number of tests of each crate.

use std::collections::BTreeMap;

use super::source_file::crate_of;
use crate::rust_tokens::{SourceToken, tokens};

/// Returns the number of tests of each crate, with those outside its source files.
pub(super) fn tests_by_crate(sources: &BTreeMap<String, String>) -> BTreeMap<&str, usize> {
    let mut tests = BTreeMap::new();
    for (path, text) in sources {
        if let Some(name) = crate_of(path) {
            *tests.entry(name).or_default() += count(text);
        }
    }
    tests
}

/// Counts the functions under `#[test]` or `#[tokio::test]`.
fn count(source: &str) -> usize {
    let tokens = tokens(source);
    let attributes = tokens
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| pair[0].is_sign('#') && pair[1].is_sign('['));
    let is_test = |start: usize| {
        let path = tokens[start..]
            .iter()
            .find(|token| token.word() != Some("tokio") && !token.is_sign(':'));
        path.and_then(SourceToken::word) == Some("test")
    };
    attributes.filter(|(at, _)| is_test(at + 2)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_by_their_attribute() {
        let source = "#[test] fn a() {} // #[test]\n#[tokio::test(start_paused = true)] async fn b() {} #[cfg(test)] mod c {} #[contract(\"V1\")] fn test() {}";
        assert_eq!(count(source), 2);
    }

    #[test]
    fn a_crate_has_the_tests_of_all_its_files() {
        let files = [
            ("crates/a/src/lib.rs", "#[test] fn b() {}"),
            ("crates/a/tests/wire.rs", "#[test] fn c() {}"),
            ("crates/d/src/lib.rs", ""),
            ("xtask/src/main.rs", "#[test] fn e() {}"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        assert_eq!(tests_by_crate(&files.into()), [("a", 2), ("d", 0)].into());
    }
}
