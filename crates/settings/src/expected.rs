//! Texts that describe the values of a kind.

use crate::{
    Availability, KeySchema, Range, ValueKind, WordChoice,
    notation::{show_duration, show_size},
};

impl ValueKind {
    /// Returns the expected values, for a problem's text.
    pub fn expected(&self) -> String {
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
                show_duration(least)
            ),
            Self::Size { min, max } => {
                let (min, max) = (show_size(min), show_size(max));
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
            Self::WebOrigin => "an origin such as https://app.example:8443, or *".into(),
            Self::AddressRange => "an address or a range such as 10.0.0.0/8".into(),
            Self::RedisUrl => {
                "redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], or \
                 redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT],.../NAME[/DATABASE]; rediss if encrypted"
                    .into()
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
pub fn names(keys: &[KeySchema]) -> String {
    keys.iter()
        .map(|key| key.name)
        .collect::<Vec<_>>()
        .join(", ")
}
