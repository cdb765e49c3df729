//! The checked query of a subscriber.

use std::sync::Arc;

use dialect::{ApiError, ErrorCode};
use serde::Deserialize;

/// The query, as sent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawStreamQuery {
    worker: Option<String>,
    format: Option<String>,
    snapshot: Option<String>,
    salts: Option<String>,
}

impl RawStreamQuery {
    /// Returns whether it asks for salts as they are.
    pub(super) fn shows_salts(&self) -> bool {
        self.salts.as_deref() == Some(PLAIN)
    }
}

/// Value of `salts` for salts as they are.
const PLAIN: &str = "plain";

/// The query, checked.
#[derive(Clone, Debug)]
pub(super) struct StreamQuery {
    /// If set, only the content of this worker.
    pub(super) worker: Option<Arc<str>>,
    pub(super) format: Format,
    /// Whether the initial state comes first.
    pub(super) snapshot: bool,
    pub(super) salts: Salts,
}

/// The form of an event's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// An event per block: prefix hash, and tokens up to its end. Source: contract CK44 and CK45.
    Continuum,
    /// An envelope per stretch of blocks. Source: contract MC8 and MC9.
    Rfc1527,
}

/// The form of salts, where the format has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Salts {
    Digest,
    Plain,
}

impl Salts {
    pub(super) fn are_plain(self) -> bool {
        self == Self::Plain
    }
}

impl TryFrom<RawStreamQuery> for StreamQuery {
    type Error = ApiError;

    fn try_from(raw: RawStreamQuery) -> Result<Self, ApiError> {
        let formats = [
            ("continuum", Format::Continuum),
            ("rfc1527", Format::Rfc1527),
        ];
        let salts = [("digest", Salts::Digest), (PLAIN, Salts::Plain)];
        Ok(Self {
            worker: raw.worker.map(Arc::from),
            format: one_of("format", raw.format.as_deref(), &formats)?,
            snapshot: one_of(
                "snapshot",
                raw.snapshot.as_deref(),
                &[("false", false), ("true", true)],
            )?,
            salts: one_of("salts", raw.salts.as_deref(), &salts)?,
        })
    }
}

/// Parses a value; the first known one is the default.
fn one_of<T: Copy>(name: &str, value: Option<&str>, known: &[(&str, T)]) -> Result<T, ApiError> {
    let Some(value) = value else {
        return Ok(known[0].1);
    };
    known
        .iter()
        .find(|(word, _)| *word == value)
        .map(|(_, meant)| *meant)
        .ok_or_else(|| {
            let value: String = value.chars().filter(|c| !c.is_control()).take(60).collect();
            let words: Vec<_> = known.iter().map(|(word, _)| *word).collect();
            let message = format!("{name} is {value:?}: expected {}", words.join(" or "));
            ApiError::new(ErrorCode::InvalidRequest, message).param(name)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &[(&str, &str)]) -> Result<StreamQuery, ApiError> {
        let of = |name| {
            query
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        RawStreamQuery {
            worker: of("worker"),
            format: of("format"),
            snapshot: of("snapshot"),
            salts: of("salts"),
        }
        .try_into()
    }

    #[test]
    fn without_a_query_the_stream_has_changes_of_all_workers() {
        let query = parsed(&[]).unwrap();
        assert_eq!(
            (query.worker, query.format, query.snapshot, query.salts),
            (None, Format::Continuum, false, Salts::Digest)
        );
    }

    #[test]
    fn an_unknown_value_is_named_with_the_known_ones() {
        for (name, value) in [("format", "rfc1403"), ("snapshot", "1"), ("salts", "")] {
            let error = parsed(&[(name, value)]).unwrap_err();
            assert_eq!(
                (error.code, error.param.as_deref()),
                (ErrorCode::InvalidRequest, Some(name))
            );
            assert!(
                error
                    .message
                    .contains(&format!("{name} is {value:?}: expected ")),
                "{}",
                error.message
            );
        }
    }
}
