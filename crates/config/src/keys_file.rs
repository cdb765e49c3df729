//! The file of `tenants.keys_file`: an entry of `tenants.api_keys` in JSON on each line.
//!
//! Lines are checked one by one, so that a file of 100,000 keys never stands in memory as a tree;
//! each leaves a [`KeyEntry`].

use std::{collections::HashMap, fmt, panic::resume_unwind, sync::Arc, thread};

use settings::{
    CheckUrl, CheckedValue, KeySchema, LocatedValue, Section as _, Setting as _, ValueOrigin,
};
use tenants::{EntryParts, EntryRules, KeyDigest, KeyEntry, ListedKeys, TenantEntry};

use crate::{
    Problem,
    build::tenants::EntryCheck,
    check::Checker,
    json_object::json_object,
    problem::{ProblemDraft, report},
};

/// Most keys of a file: some 300 bytes each, in the list and in the table, where rules are alike.
const MOST_KEYS: usize = 100_000;
/// Longest line, in bytes.
const MAX_LINE: usize = 64 * 1024;
/// Most problems that are gathered.
const MOST_PROBLEMS: usize = 100;
/// Most threads that read a file, and least lines of each: below some milliseconds one does it all.
const MOST_THREADS: usize = 8;
const LINES_OF_THREAD: usize = 1_000;

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
) -> Result<ListedKeys, Vec<Problem>> {
    let lines = text.lines().enumerate().map(|(at, line)| Line {
        number: at + 1,
        text: line.trim(),
    });
    let lines = lines.filter(|line| !line.text.is_empty() && !line.text.starts_with('#'));
    let lines: Vec<Line<'_>> = lines.take(MOST_KEYS + 1).collect();
    let mut reader = KeysReader::new(beside, lines.len());
    for (line, read) in lines.iter().zip(read_all(&lines)) {
        reader.line(line.number, read);
        if reader.problems.len() >= MOST_PROBLEMS {
            break;
        }
    }
    if lines.len() > MOST_KEYS {
        let draft = ProblemDraft::new("tenants.keys_file", "too many keys");
        let expected = format!("at most {MOST_KEYS} lines");
        reader.problems.push(draft.expected(expected));
    }
    if reader.problems.is_empty() {
        Ok(ListedKeys::new(reader.entries))
    } else {
        Err(report(reader.problems, name))
    }
}

/// A line that is to be an entry.
#[derive(Clone, Copy)]
struct Line<'a> {
    /// Its number, from 1.
    number: usize,
    /// Its text, without spaces around it.
    text: &'a str,
}

/// An entry by itself.
type ReadEntry = Result<KeyEntry, Vec<ProblemDraft>>;

/// Reads the lines by themselves, in their order, on several threads. Each thread stops after
/// [`MOST_PROBLEMS`] problems.
fn read_all(lines: &[Line<'_>]) -> impl Iterator<Item = ReadEntry> {
    let threads = thread::available_parallelism().map_or(1, |most| most.get().min(MOST_THREADS));
    let share = lines.len().div_ceil(threads).max(LINES_OF_THREAD);
    let read = thread::scope(|scope| {
        let mut parts = lines.chunks(share);
        let own = parts.next();
        let others: Vec<_> = parts
            .map(|part| scope.spawn(move || read_part(part)))
            .collect();
        let mut read = vec![own.map_or_else(Vec::new, read_part)];
        for other in others {
            match other.join() {
                Ok(part) => read.push(part),
                Err(panic) => resume_unwind(panic),
            }
        }
        read
    });
    read.into_iter().flatten()
}

fn read_part(lines: &[Line<'_>]) -> Vec<ReadEntry> {
    let mut read = Vec::with_capacity(lines.len());
    let mut reader = LineReader::new();
    let mut wrong = 0;
    for line in lines {
        let entry = reader.read(line.text);
        wrong += usize::from(entry.is_err());
        read.push(entry);
        if wrong >= MOST_PROBLEMS {
            break;
        }
    }
    read
}

/// Reads lines by themselves.
struct LineReader {
    /// The values of an entry that sets none: their texts are read once, not for each line.
    defaults: CheckedValue,
    parts: EntryParts,
}

impl LineReader {
    fn new() -> Self {
        Self {
            defaults: CheckedValue::defaults(TenantEntry::KEYS),
            parts: EntryParts::default(),
        }
    }

    fn read(&mut self, text: &str) -> ReadEntry {
        const OBJECT: &str = "an entry of tenants.api_keys as one JSON object, such as {\"name\": \"a\", \"key_sha256\": \
                              \"...\"}";
        // The origin is replaced by the line, as the columns of one line say little.
        const ORIGIN: ValueOrigin = ValueOrigin::File { line: 1, column: 1 };
        if text.len() > MAX_LINE {
            return Err(problem("a line longer than 64 KiB", OBJECT));
        }
        // The text of a line that is not JSON is not shown: it may be a key.
        match json_object(text, &ORIGIN) {
            Some(tree) => self.checked(&tree),
            None => Err(problem("no JSON object", OBJECT)),
        }
    }

    /// Checks an entry by itself.
    fn checked(&mut self, tree: &LocatedValue) -> ReadEntry {
        const NO_URLS: CheckUrl = |_| Err(String::new());
        let mut checker = Checker {
            env: &[],
            check_url: NO_URLS,
            problems: Vec::new(),
        };
        let default = |key: &KeySchema| self.defaults.key(key.name).value.clone();
        let value = checker.section_with_defaults(TenantEntry::KEYS, Some(tree), "", default);
        let mut problems = checker.problems;
        let check = EntryCheck {
            path: "",
            entry: &value,
        };
        let digest = check.alone(&mut problems);
        match (TenantEntry::read(&value), digest) {
            (Some(entry), Some(digest)) if problems.is_empty() => {
                Ok(KeyEntry::of(&entry, digest, &mut self.parts))
            }
            _ => Err(problems),
        }
    }
}

fn problem(message: &str, expected: &str) -> Vec<ProblemDraft> {
    vec![ProblemDraft::new("", message).expected(expected)]
}

/// The entries so far.
struct KeysReader<'a> {
    beside: &'a [TenantEntry],
    entries: Vec<KeyEntry>,
    /// The place of the first entry with a name; those `beside` come before the file's own.
    names: HashMap<Arc<str>, usize>,
    keys: HashMap<KeyDigest, KeyPlace>,
    problems: Vec<ProblemDraft>,
}

/// Where a key stands.
#[derive(Clone, Copy)]
enum KeyPlace {
    /// In `tenants.api_keys`, from 0.
    Beside(usize),
    /// In this line.
    Line(usize),
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beside(at) => write!(f, "tenants.api_keys[{at}]"),
            Self::Line(number) => write!(f, "line {number}"),
        }
    }
}

impl<'a> KeysReader<'a> {
    /// Begins a file of this many lines.
    fn new(beside: &'a [TenantEntry], lines: usize) -> Self {
        let numbered = || beside.iter().enumerate();
        let digest =
            |entry: &TenantEntry| KeyDigest::from_hex(entry.key_sha256.as_ref()?.expose()).ok();
        let of_beside =
            numbered().filter_map(|(at, entry)| Some((digest(entry)?, KeyPlace::Beside(at))));
        let most = beside.len() + lines;
        let mut keys: HashMap<KeyDigest, KeyPlace> = HashMap::with_capacity(most);
        keys.extend(of_beside);
        let mut names: HashMap<Arc<str>, usize> = HashMap::with_capacity(most);
        for (at, entry) in numbered() {
            names.entry(entry.name.as_str().into()).or_insert(at);
        }
        Self {
            beside,
            entries: Vec::with_capacity(lines),
            names,
            keys,
            problems: Vec::new(),
        }
    }

    /// Takes the entry of a line, if it agrees with the earlier ones.
    fn line(&mut self, number: usize, read: ReadEntry) {
        let agreed = read.and_then(|entry| self.agreed(number, entry));
        match agreed {
            Ok(entry) => {
                let at = self.beside.len() + self.entries.len();
                self.names.entry(Arc::clone(entry.name())).or_insert(at);
                self.entries.push(entry);
            }
            Err(problems) => {
                let origin = ValueOrigin::File {
                    line: number as u64,
                    column: 1,
                };
                let at_line = problems.into_iter().map(|it| it.at(origin.clone()));
                self.problems.extend(at_line);
            }
        }
    }

    fn agreed(&mut self, number: usize, mut entry: KeyEntry) -> ReadEntry {
        let place = KeyPlace::Line(number);
        if let Some(other) = self.keys.insert(entry.digest(), place) {
            return Err(problem(
                &format!("the key of {other} too"),
                "a key of its own",
            ));
        }
        let agrees = match self.names.get(entry.name()).copied() {
            None => true,
            Some(at) => match at.checked_sub(self.beside.len()) {
                Some(own) => {
                    let first = &self.entries[own];
                    entry.share_name_of(first);
                    entry.has_rules_of(first)
                }
                None => EntryRules::of(&self.beside[at]) == **entry.rules(),
            },
        };
        if !agrees {
            let message = format!(
                "another entry gives the tenant `{}` other rules",
                entry.name()
            );
            return Err(problem(&message, "the same for every key of one tenant"));
        }
        Ok(entry)
    }
}
