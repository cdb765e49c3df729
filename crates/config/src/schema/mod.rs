//! The schema as data: every key once, with its kind, default, range and meaning.
//!
//! Checking, defaults, the JSON schema and the reference page all read this one table; only the
//! code that puts a key's value into [`crate::Settings`] repeats its name.

mod cache;
mod compat;
mod content_routing;
mod discovery;
mod hooks;
mod json;
mod kinds;
mod kv;
mod lmcache;
mod models;
mod page;
mod prefixes;
mod queue;
mod replicas;
mod response_cache;
mod routing;
mod table;
mod tls;

pub use json::schema;
pub(crate) use lmcache::FALLBACKS;
pub use page::reference_page;
pub(crate) use table::{LATER_SECTIONS, ROOT, TOP_ALIASES};

/// One key of a section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeySchema {
    pub(crate) name: &'static str,
    pub(crate) kind: ValueKind,
    /// As a user would write it; `~` = unset. Sections, lists and maps of sections have none.
    pub(crate) default: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) built: Availability,
}

/// Whether this version supports the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    Now,
    /// Any value is checked and accepted, and nothing comes of it yet: a start says so once. For
    /// keys whose absence costs work that is done again and nothing else, such as those of a cache:
    /// a file written for a program that has them keeps its meaning here, only slower.
    Idle,
    /// Known, but only its default is accepted: a file that relies on such a key (who may connect,
    /// where requests go) must not run as if it were not there.
    Later,
}

/// Values that a key takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ValueKind {
    Bool,
    Int {
        min: u64,
        max: u64,
    },
    /// A whole number of a unit that the key's name tells, or a duration.
    Counted {
        unit: Unit,
        min: u64,
        max: u64,
    },
    Float(Range),
    Duration {
        least: std::time::Duration,
    },
    Size {
        min: u64,
        max: u64,
    },
    /// Any text on one line.
    Text,
    /// A path on this machine.
    Path,
    /// The name of an HTTP header.
    HeaderName,
    /// The path part of a URL, from its `/` on.
    UrlPath,
    /// `tcp://host:port` or `ipc://path`.
    Endpoint,
    /// Where a stream of events is, with one of these schemes.
    Stream(&'static [&'static str]),
    /// A worker's base URL.
    WorkerUrl,
    Listen,
    /// A text that is never shown.
    Secret,
    /// Where a Redis server is; shown without its user and password.
    RedisUrl,
    /// A text that begins the keys of a store: no pattern, and not longer than this.
    KeyPrefix {
        max: usize,
    },
    /// One of some words.
    Word(&'static [WordChoice]),
    /// One of some words, or a value of the kind.
    WordOr(&'static [WordChoice], &'static ValueKind),
    /// Any value.
    Free,
    List(&'static ValueKind),
    /// Names of the user's choice, each with a value of the kind.
    Map(&'static ValueKind),
    Section(&'static [KeySchema]),
    /// A section, or `[NAME=]URL` in its place.
    Worker(&'static [KeySchema]),
}

/// Unit of a bare number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Milliseconds,
    Seconds,
}

impl Unit {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
        }
    }

    /// Converts a duration that is a whole number of units to that number.
    pub(crate) fn count(self, duration: std::time::Duration) -> Option<u64> {
        let micros = match self {
            Self::Milliseconds => 1_000,
            Self::Seconds => 1_000_000,
        };
        let whole = duration.as_micros();
        whole
            .is_multiple_of(micros)
            .then(|| u64::try_from(whole / micros).ok())
            .flatten()
    }
}

/// A range of numbers; both ends belong to it, except `min` when `open`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) open: bool,
}

/// A word that a key takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordChoice {
    pub(crate) word: &'static str,
    /// Other spellings; upper case, `-` and `_` never matter.
    pub(crate) also: &'static [&'static str],
    pub(crate) built: Availability,
}

impl KeySchema {
    /// Accepts only this key's default, in this version.
    const fn later(mut self) -> Self {
        self.built = Availability::Later;
        self
    }

    /// Accepts the key without effect, in this version.
    const fn idle(mut self) -> Self {
        self.built = Availability::Idle;
        self
    }

    /// Returns whether every key below is unsupported too.
    pub(crate) fn is_later(&self) -> bool {
        match self.kind {
            // A section without keys has only its own availability.
            ValueKind::Section([]) => self.built == Availability::Later,
            ValueKind::Section(keys) => {
                self.built == Availability::Later || keys.iter().all(Self::is_later)
            }
            _ => self.built == Availability::Later,
        }
    }
}

const fn key(
    name: &'static str,
    kind: ValueKind,
    default: &'static str,
    doc: &'static str,
) -> KeySchema {
    KeySchema {
        name,
        kind,
        default,
        doc,
        built: Availability::Now,
    }
}

const fn word(word: &'static str) -> WordChoice {
    WordChoice {
        word,
        also: &[],
        built: Availability::Now,
    }
}

const fn word_later(word: &'static str) -> WordChoice {
    WordChoice {
        word,
        also: &[],
        built: Availability::Later,
    }
}

impl WordChoice {
    pub(crate) fn matches(&self, text: &str) -> bool {
        let text = fold(text);
        std::iter::once(&self.word)
            .chain(self.also)
            .any(|word| fold(word) == text)
    }
}

/// Normalizes a word: `RoundRobin`, `round-robin` and `round_robin` are equal.
fn fold(text: &str) -> String {
    text.chars()
        .filter(|letter| !matches!(letter, '-' | '_'))
        .map(|letter| letter.to_ascii_lowercase())
        .collect()
}

impl ValueKind {
    /// Returns the expected values, for a problem's text.
    pub(crate) fn expected(&self) -> String {
        match *self {
            Self::Bool => "true or false".into(),
            Self::Int { min, max: u64::MAX } => format!("a whole number of at least {min}"),
            Self::Int { min, max } => format!("a whole number from {min} to {max}"),
            Self::Counted { unit, min, max } => {
                let unit = unit.as_str();
                format!(
                    "a whole number from {min} to {max} (in {unit}), or a duration such as {max}{unit}"
                )
            }
            Self::Float(range) => range.expected(),
            Self::Duration { least } if least.is_zero() => {
                "a duration such as 250ms, 30s or 5m, or a number of seconds".into()
            }
            Self::Duration { least } => format!(
                "a duration of at least {} such as 250ms, 30s or 5m, or a number of seconds",
                crate::scalar::show_duration(least)
            ),
            Self::Size { min, max } => {
                let (min, max) = (crate::scalar::show_size(min), crate::scalar::show_size(max));
                format!("a size such as 32KiB, 512MiB or a number of bytes, from {min} to {max}")
            }
            Self::Text => "a text".into(),
            Self::Path => "a path".into(),
            Self::HeaderName => "the name of a header such as x-session-id".into(),
            Self::UrlPath => "a path such as /health".into(),
            Self::Endpoint => "tcp://HOST:PORT or ipc://PATH".into(),
            Self::Stream(schemes) => format!(
                "the place of a stream with one of the schemes {}",
                schemes.join(", ")
            ),
            Self::WorkerUrl => "a URL such as http://127.0.0.1:8000".into(),
            Self::Listen => {
                "an address such as 127.0.0.1:8080, [::1]:8080 or unix:/run/warmroute.sock".into()
            }
            Self::RedisUrl => {
                "redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], or rediss:// if encrypted".into()
            }
            Self::KeyPrefix { max } => {
                format!("a text of 1 to {max} visible ASCII characters without * ? [ ] \\")
            }
            Self::Secret => "a text, best as ${NAME} of an environment variable".into(),
            Self::Word(choices) => format!("one of {}", words(choices)),
            Self::WordOr(choices, kind) => format!("{} or {}", words(choices), kind.expected()),
            Self::Free => "any value".into(),
            Self::List(_) => "a list".into(),
            Self::Map(_) => "a mapping from names to values".into(),
            Self::Section([]) => "an empty mapping".into(),
            Self::Section(keys) => format!("a mapping with {}", names(keys)),
            Self::Worker(keys) => format!("[NAME=]URL or a mapping with {}", names(keys)),
        }
    }
}

impl Range {
    fn expected(self) -> String {
        let Self { min, max, open } = self;
        match (open, max.is_finite()) {
            (true, false) => format!("a number above {min}"),
            (false, false) => format!("a number of at least {min}"),
            (true, true) => format!("a number above {min} and up to {max}"),
            (false, true) => format!("a number from {min} to {max}"),
        }
    }

    pub(crate) fn holds(self, value: f64) -> bool {
        value.is_finite()
            && value <= self.max
            && if self.open {
                value > self.min
            } else {
                value >= self.min
            }
    }
}

/// Returns the words that this version takes.
fn words(choices: &[WordChoice]) -> String {
    let words: Vec<_> = choices
        .iter()
        .filter(|choice| choice.built == Availability::Now)
        .map(|choice| choice.word)
        .collect();
    words.join(", ")
}

/// Returns the names of some keys.
pub(crate) fn names(keys: &[KeySchema]) -> String {
    keys.iter()
        .map(|key| key.name)
        .collect::<Vec<_>>()
        .join(", ")
}
