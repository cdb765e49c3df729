//! Joins values that arrive in pieces.
//!
//! Values stay in their original text, so numbers keep every digit. Strings are joined between
//! their quotes: escapes stay escaped, and halves of a character from two chunks form one character
//! again.
//!
//! **Invariant**: the buffered value is no longer than its input, and is JSON after every step.

use super::{
    NotCacheable,
    partial::{PartialMember, PartialObject, PartialValue, is_empty_value},
    rules::{JoinRule, JoinRules},
};
use crate::json::RawJson;

/// Maximum number of choices, and of tool calls in one choice.
const MOST_INDICES: u64 = 1_024;

/// Maximum number of members of an object: they are searched one by one.
const MOST_MEMBERS: usize = 256;

impl PartialObject {
    /// Adds the next piece of the object.
    pub(super) fn join(
        &mut self,
        piece: RawJson<'_>,
        table: JoinRules,
    ) -> Result<(), NotCacheable> {
        self.begin();
        for (name, value) in piece.members().ok_or(NotCacheable::UnknownShape)? {
            match table(&name) {
                JoinRule::Skipped => {}
                rule => self.entry(&name)?.join(value, rule)?,
            }
        }
        Ok(())
    }

    /// Begins the next piece.
    pub(super) fn begin(&mut self) {
        self.pieces += 1;
    }

    /// Adds a value of the current piece that may be repeated: the first non-empty one counts.
    pub(super) fn first(&mut self, name: &str, value: RawJson<'_>) -> Result<(), NotCacheable> {
        let joined = self.entry(name)?;
        // A time of 0 counts as absent.
        if is_empty_value(joined.raw()) || joined.raw() == "0" {
            *joined = if value.is_null() {
                PartialValue::Null
            } else {
                PartialValue::One(value.as_str().to_owned())
            };
        }
        Ok(())
    }

    /// Returns the place of a member in the current piece.
    fn entry(&mut self, name: &str) -> Result<&mut PartialValue, NotCacheable> {
        let at = self
            .entries
            .iter()
            .position(|entry| entry.name == name)
            .unwrap_or(self.entries.len());
        if at == self.entries.len() {
            if at == MOST_MEMBERS {
                return Err(NotCacheable::UnknownShape);
            }
            self.entries.push(PartialMember {
                name: name.to_owned(),
                value: PartialValue::Null,
                piece: 0,
            });
        }
        let entry = &mut self.entries[at];
        // A duplicate in one object: clients differ in which one they read.
        if std::mem::replace(&mut entry.piece, self.pieces) == self.pieces {
            return Err(NotCacheable::UnknownShape);
        }
        Ok(&mut entry.value)
    }
}

impl PartialValue {
    /// Adds the next piece of the value.
    pub(super) fn join(&mut self, piece: RawJson<'_>, rule: JoinRule) -> Result<(), NotCacheable> {
        let text = piece.as_str();
        match (rule, text.as_bytes().first()) {
            _ if piece.is_null() => Ok(()),
            (JoinRule::Error, _) if !is_empty_value(text) => Err(NotCacheable::ErrorInBand),
            (JoinRule::Refused, _) if !is_empty_value(text) => Err(NotCacheable::UnknownShape),
            (JoinRule::Error | JoinRule::Refused | JoinRule::Skipped, _) => Ok(()),
            (JoinRule::Text, Some(b'"')) => self.continue_text(text),
            (JoinRule::Unknown, Some(b'"')) => {
                let inner = &text[1..text.len() - 1];
                match self {
                    // This is either the next piece of a text or a repetition of one word.
                    Self::Text {
                        inner: joined,
                        last,
                    } if *last == inner.len() && *last > 0 && joined.ends_with(inner) => {
                        Err(NotCacheable::UnknownShape)
                    }
                    _ => self.continue_text(text),
                }
            }
            (JoinRule::Unknown, Some(b'['))
                if !is_empty_value(self.raw()) && !is_empty_value(text) =>
            {
                Err(NotCacheable::UnknownShape)
            }
            (JoinRule::Same | JoinRule::Unknown, _) => self.same(text),
            (JoinRule::List, Some(b'[')) => self.continue_list(piece),
            (JoinRule::Object(table), Some(b'{')) => {
                if matches!(self, Self::Null) {
                    *self = Self::Object(PartialObject::default());
                }
                let Self::Object(members) = self else {
                    return Err(NotCacheable::UnknownShape);
                };
                members.join(piece, table)
            }
            (JoinRule::Indexed(table), Some(b'[')) => self.continue_indexed(piece, table),
            (JoinRule::Text | JoinRule::List | JoinRule::Object(_) | JoinRule::Indexed(_), _) => {
                Err(NotCacheable::UnknownShape)
            }
        }
    }

    fn continue_text(&mut self, quoted: &str) -> Result<(), NotCacheable> {
        let piece = &quoted[1..quoted.len() - 1];
        match self {
            Self::Null => {
                *self = Self::Text {
                    inner: piece.to_owned(),
                    last: piece.len(),
                }
            }
            Self::Text { inner, last } => {
                inner.push_str(piece);
                *last = piece.len();
            }
            _ => return Err(NotCacheable::UnknownShape),
        }
        Ok(())
    }

    fn continue_list(&mut self, piece: RawJson<'_>) -> Result<(), NotCacheable> {
        if matches!(self, Self::Null) {
            *self = Self::List(String::new());
        }
        let Self::List(inner) = self else {
            return Err(NotCacheable::UnknownShape);
        };
        for element in piece.elements().into_iter().flatten() {
            if !inner.is_empty() {
                inner.push(',');
            }
            inner.push_str(element.as_str());
        }
        Ok(())
    }

    fn continue_indexed(
        &mut self,
        piece: RawJson<'_>,
        table: JoinRules,
    ) -> Result<(), NotCacheable> {
        if matches!(self, Self::Null) {
            *self = Self::Indexed(Vec::new());
        }
        let Self::Indexed(all) = self else {
            return Err(NotCacheable::UnknownShape);
        };
        for element in piece.elements().into_iter().flatten() {
            let index = element
                .member("index")
                .and_then(RawJson::integer)
                .and_then(|index| u64::try_from(index).ok());
            // No engine gives more; the bound limits the work.
            let index = index
                .filter(|index| *index < MOST_INDICES)
                .ok_or(NotCacheable::UnknownShape)?;
            let at = match all.binary_search_by_key(&index, |(own, _)| *own) {
                Ok(at) => at,
                Err(at) => {
                    all.insert(at, (index, PartialObject::default()));
                    at
                }
            };
            all[at].1.join(element, table)?;
        }
        Ok(())
    }

    fn same(&mut self, text: &str) -> Result<(), NotCacheable> {
        match self {
            Self::Null => *self = Self::One(text.to_owned()),
            Self::One(joined) if is_empty_value(joined) => text.clone_into(joined),
            Self::One(joined) if joined == text || is_empty_value(text) => {}
            _ => return Err(NotCacheable::UnknownShape),
        }
        Ok(())
    }
}
