//! The file of `tenants.keys_file`: an entry of `tenants.api_keys` in JSON on each line.
//!
//! Lines are checked one by one, so that a file of 100,000 keys never stands in memory as a tree.

use std::collections::HashMap;

use serde::de::IgnoredAny;
use settings::{CheckUrl, LocatedValue, Section, Setting as _, ValueNode, ValueOrigin};
use tenants::{KeyDigest, TenantEntry};

use crate::{
    Problem,
    build::tenants::EntryCheck,
    check::Checker,
    problem::{ProblemDraft, report},
    yaml,
};

/// Most keys of a file: some 100 MB of table.
const MOST_KEYS: usize = 100_000;
/// Longest line, in bytes.
const MAX_LINE: usize = 64 * 1024;
/// Most problems that are gathered.
const MOST_PROBLEMS: usize = 100;

/// Reads a file of keys. `name`: the name of the file in problems. `beside`: the entries of
/// `tenants.api_keys`, which have their keys as digests. Empty lines and lines that begin with `#`
/// are left out.
///
/// # Errors
///
/// Every line that is no entry, that has the key of another one, or that gives a tenant other rules
/// than an earlier line or `beside`; above 100,000 keys.
pub fn keys_file(
    text: &str,
    name: &str,
    beside: &[TenantEntry],
) -> Result<Vec<TenantEntry>, Vec<Problem>> {
    let mut reader = KeysReader::new(beside);
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            reader.line(at + 1, line);
        }
        if reader.problems.len() >= MOST_PROBLEMS || reader.entries.len() > MOST_KEYS {
            break;
        }
    }
    if reader.entries.len() > MOST_KEYS {
        let draft = ProblemDraft::new("tenants.keys_file", "too many keys");
        let expected = format!("at most {MOST_KEYS} lines");
        reader.problems.push(draft.expected(expected));
    }
    if reader.problems.is_empty() {
        Ok(reader.entries)
    } else {
        Err(report(reader.problems, name))
    }
}

/// The entries so far.
struct KeysReader<'a> {
    beside: &'a [TenantEntry],
    entries: Vec<TenantEntry>,
    /// The place of the first entry with a name; those `beside` come before the file's own.
    names: HashMap<String, usize>,
    keys: HashMap<KeyDigest, String>,
    problems: Vec<ProblemDraft>,
}

impl<'a> KeysReader<'a> {
    fn new(beside: &'a [TenantEntry]) -> Self {
        let numbered = || beside.iter().enumerate();
        let digest =
            |entry: &TenantEntry| KeyDigest::from_hex(entry.key_sha256.as_ref()?.expose()).ok();
        let keys = numbered().filter_map(|(at, entry)| {
            let place = format!("tenants.api_keys[{at}]");
            Some((digest(entry)?, place))
        });
        let mut names = HashMap::new();
        for (at, entry) in numbered() {
            names.entry(entry.name.clone()).or_insert(at);
        }
        Self {
            beside,
            entries: Vec::new(),
            names,
            keys: keys.collect(),
            problems: Vec::new(),
        }
    }

    /// Reads the entry on a line; the number counts from 1.
    fn line(&mut self, number: usize, text: &str) {
        let place = format!("line {number}");
        let entry = self.entry(&place, text);
        let origin = || ValueOrigin::File {
            line: number as u64,
            column: 1,
        };
        let at_line = |drafts: Vec<ProblemDraft>| drafts.into_iter().map(move |it| it.at(origin()));
        match entry.map_err(at_line) {
            Ok(entry) => {
                let at = self.beside.len() + self.entries.len();
                self.names.entry(entry.name.clone()).or_insert(at);
                self.entries.push(entry);
            }
            Err(problems) => self.problems.extend(problems),
        }
    }

    fn entry(&mut self, place: &str, text: &str) -> Result<TenantEntry, Vec<ProblemDraft>> {
        let problem =
            |message: &str, expected: &str| vec![ProblemDraft::new("", message).expected(expected)];
        const OBJECT: &str = "an entry of tenants.api_keys as one JSON object, such as {\"name\": \"a\", \"key_sha256\": \
                              \"...\"}";
        // The text of a line that is not JSON is not shown: it may be a key. The YAML parser below would
        // accept other forms.
        let is_json = serde_json::from_str::<IgnoredAny>(text).is_ok();
        if text.len() > MAX_LINE || !text.starts_with('{') || !is_json {
            return Err(problem("no JSON object", OBJECT));
        }
        let (Some(tree), faults) = yaml::parse(text) else {
            return Err(problem("no JSON", OBJECT));
        };
        if !faults.is_empty() || !matches!(tree.node, ValueNode::Map(_)) {
            return Err(problem("no JSON", OBJECT));
        }
        let (entry, digest) = checked(&tree)?;
        if let Some(other) = self.keys.insert(digest, place.to_owned()) {
            return Err(problem(
                &format!("the key of {other} too"),
                "a key of its own",
            ));
        }
        let first = self
            .names
            .get(&entry.name)
            .map(|at| match at.checked_sub(self.beside.len()) {
                Some(own) => &self.entries[own],
                None => &self.beside[*at],
            });
        if first.is_some_and(|first| !first.has_rules_of(&entry)) {
            let message = format!(
                "another entry gives the tenant `{}` other rules",
                entry.name
            );
            return Err(problem(&message, "the same for every key of one tenant"));
        }
        Ok(entry)
    }
}

/// Checks an entry by itself; its key is replaced by the digest.
fn checked(tree: &LocatedValue) -> Result<(TenantEntry, KeyDigest), Vec<ProblemDraft>> {
    const NO_URLS: CheckUrl = |_| Err(String::new());
    let mut checker = Checker {
        env: &[],
        check_url: NO_URLS,
        problems: Vec::new(),
    };
    let value = checker.section(TenantEntry::KEYS, Some(tree), "");
    let mut problems = checker.problems;
    let check = EntryCheck {
        path: "",
        entry: &value,
    };
    let digest = check.alone(&mut problems);
    match (TenantEntry::read(&value), digest) {
        (Some(mut entry), Some(digest)) if problems.is_empty() => {
            entry.hash_key();
            Ok((entry, digest))
        }
        _ => Err(problems),
    }
}
