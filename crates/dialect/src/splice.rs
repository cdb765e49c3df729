//! Changes single members of a body and leaves every other byte unchanged: unknown fields, order,
//! spacing and numbers stay as the client wrote them.

use crate::json::{self, JsonError};

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit<'a> {
    /// Sets the member of this name to this value, which must be JSON; appends it if it is absent.
    Set(&'a str, &'a str),
    /// Removes the member of this name.
    Remove(&'a str),
}

impl Edit<'_> {
    fn key(&self) -> &str {
        match self {
            Self::Set(key, _) | Self::Remove(key) => key,
        }
    }
}

/// A replacement at a place of the text: `text` replaces `range`.
struct Replacement<'a> {
    range: std::ops::Range<usize>,
    text: &'a str,
}

/// Returns `body`, which must be one JSON object, with its members changed. A member that occurs
/// twice is changed both times. Names in `edits` must be plain: they contain nothing that needs an
/// escape.
///
/// ```
/// use dialect::{Edit, splice};
///
/// let body = br#"{ "model":"m", "x": 1e2,"stream":true }"#;
/// let edits = [Edit::Set("stream", "false"), Edit::Remove("model"), Edit::Set("max_tokens", "1")];
/// assert_eq!(splice(body, &edits).unwrap(), br#"{ "x": 1e2,"stream":false,"max_tokens":1 }"#);
/// ```
///
/// # Errors
///
/// If the body is not one JSON object in UTF-8.
pub fn splice(body: &[u8], edits: &[Edit<'_>]) -> Result<Vec<u8>, JsonError> {
    let text = json::utf8(body).map_err(|at| JsonError {
        at,
        what: "the text is not utf-8",
    })?;
    let offset = |part: &str| part.as_ptr() as usize - text.as_ptr() as usize;
    let mut cuts: Vec<Replacement<'_>> = Vec::new();
    let mut found = vec![false; edits.len()];
    // End of the latest kept member, or of the cut behind it.
    let mut retained_end = None;
    let mut members = json::members(text).peekable();
    while let Some(member) = members.next() {
        let (key, value) = member?;
        let value = value.as_str();
        let (start, end) = (offset(key), offset(value) + value.len());
        let name = json::decode(key);
        let edit = edits.iter().position(|edit| edit.key() == name);
        if let Some(at) = edit {
            found[at] = true;
        }
        match edit.map(|at| edits[at]) {
            Some(Edit::Set(_, json)) => cuts.push(Replacement {
                range: offset(value)..end,
                text: json,
            }),
            Some(Edit::Remove(_)) => {
                // The cut includes the comma before it; the first remaining member has none, so the
                // comma behind it is cut.
                let range = match (retained_end, members.peek()) {
                    (Some(before), _) => before..end,
                    (None, Some(Ok((next, _)))) => start..offset(next),
                    (None, _) => start..end,
                };
                cuts.push(Replacement { range, text: "" });
                retained_end = retained_end.map(|_| end);
                continue;
            }
            None => {}
        }
        retained_end = Some(end);
    }
    let absent = edits.iter().zip(found).filter(|(_, found)| !found);
    let tail = added(absent.map(|(edit, _)| *edit));
    // Nothing stands before the first addition to an empty object.
    let tail = if retained_end.is_some() {
        &tail
    } else {
        tail.trim_start_matches(',')
    };
    // The walk reached the end, so there is a closing brace; additions go right behind the latest
    // member.
    let close = text.rfind('}').unwrap_or(text.len());
    let at = retained_end.unwrap_or(close);
    cuts.push(Replacement {
        range: at..at,
        text: tail,
    });
    Ok(applied(text, &cuts))
}

/// Returns the members that these edits set, each behind a comma.
fn added<'a>(edits: impl Iterator<Item = Edit<'a>>) -> String {
    let mut members = String::new();
    for edit in edits {
        if let Edit::Set(key, json) = edit {
            members.push(',');
            json::write_string(&mut members, key);
            members.push(':');
            members += json;
        }
    }
    members
}

/// `cuts` are ordered and do not overlap.
fn applied(text: &str, cuts: &[Replacement<'_>]) -> Vec<u8> {
    let more: usize = cuts.iter().map(|cut| cut.text.len()).sum();
    let mut out = Vec::with_capacity(text.len() + more);
    let mut at = 0;
    for cut in cuts {
        out.extend_from_slice(&text.as_bytes()[at..cut.range.start]);
        out.extend_from_slice(cut.text.as_bytes());
        at = cut.range.end;
    }
    out.extend_from_slice(&text.as_bytes()[at..]);
    out
}
