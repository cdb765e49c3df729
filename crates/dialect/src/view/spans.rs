//! The places of the members that routing reads.

use std::ops::Range;

use super::{Dialect, RequestView, ViewError, body_fields::BodyFields, key::Key, object_text};
use crate::json::RawJson;

/// The places in a body of the members that routing reads: another thread reads the same bytes with
/// them, without a walk.
#[derive(Clone, Debug, Default)]
pub struct MemberSpans {
    /// Bytes of the body; 0: none was walked.
    length: usize,
    found: Vec<(Key, Range<usize>)>,
}

impl MemberSpans {
    pub(super) fn new(text: &str, found: Vec<(Key, Range<usize>)>) -> Self {
        Self {
            length: text.len(),
            found,
        }
    }

    /// Reads `body`, the one in which they were found, as [`view()`](super::view()) does.
    pub fn view<'b>(&self, dialect: Dialect, body: &'b [u8]) -> Result<RequestView<'b>, ViewError> {
        if self.length != body.len() {
            return super::view(dialect, body);
        }
        let text = object_text(body)?;
        let found = self.found.iter();
        let values = found.map(|(key, place)| (*key, RawJson::found_at(text, place.clone())));
        match BodyFields::at(text, values) {
            Some(mut fields) => fields.view(dialect),
            None => super::view(dialect, body),
        }
    }
}
