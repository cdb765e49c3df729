//! Values that come in pieces, put together by the rules.
//!
//! Values stay the text they came as, so numbers keep every digit. Strings are joined between their quotes: what is escaped
//! stays escaped, and halves of a character that came in two chunks meet again.
//!
//! **Invariant**: what is held is no longer than what was put in, and is JSON after every step.

use super::{
    NotKept,
    rules::{Rule, Table},
};
use crate::json::{Object, RawJson};

/// Choices, and tool calls of one choice.
const MOST_INDICES: u64 = 1_024;

/// An object may have so many members: they are looked for one by one.
const MOST_MEMBERS: usize = 256;

/// An object that comes in pieces; its members are in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Members {
    entries: Vec<Entry>,
    /// How many pieces have come.
    pieces: u64,
}

#[derive(Debug)]
struct Entry {
    name: String,
    value: Joined,
    /// The last piece that has it.
    piece: u64,
}

/// A value, as far as it has come.
#[derive(Debug, Default)]
pub(super) enum Joined {
    #[default]
    Null,
    /// What is between the quotes, and how long its last piece was.
    Text {
        inner: String,
        last: usize,
    },
    /// What is between the brackets.
    List(String),
    /// One value.
    One(String),
    Object(Members),
    /// By their numbers.
    Indexed(Vec<(u64, Members)>),
}

impl Members {
    /// Takes the next piece of the object.
    pub(super) fn join(&mut self, piece: RawJson<'_>, table: Table) -> Result<(), NotKept> {
        self.begin();
        for (name, value) in piece.members().ok_or(NotKept::UnknownShape)? {
            match table(&name) {
                Rule::Skipped => {}
                rule => self.entry(&name)?.join(value, rule)?,
            }
        }
        Ok(())
    }

    /// The next piece begins.
    pub(super) fn begin(&mut self) {
        self.pieces += 1;
    }

    /// Takes a value of the piece at hand that may be told again: the first that says anything counts.
    pub(super) fn first(&mut self, name: &str, value: RawJson<'_>) -> Result<(), NotKept> {
        let held = self.entry(name)?;
        // A time of 0 is no time either.
        if says_nothing(held.raw()) || held.raw() == "0" {
            *held = if value.is_null() {
                Joined::Null
            } else {
                Joined::One(value.as_str().to_owned())
            };
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&Joined> {
        self.entries
            .iter()
            .find(|entry| entry.name == name)
            .map(|entry| &entry.value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Joined)> {
        self.entries
            .iter()
            .map(|entry| (&*entry.name, &entry.value))
    }

    /// Writes the member, where there is one.
    pub(super) fn write(&self, name: &str, object: &mut Object<'_>) {
        if let Some(value) = self.get(name) {
            value.write(object.key(name));
        }
    }

    /// The place of a member in the piece at hand.
    fn entry(&mut self, name: &str) -> Result<&mut Joined, NotKept> {
        let at = self
            .entries
            .iter()
            .position(|entry| entry.name == name)
            .unwrap_or(self.entries.len());
        if at == self.entries.len() {
            if at == MOST_MEMBERS {
                return Err(NotKept::UnknownShape);
            }
            self.entries.push(Entry {
                name: name.to_owned(),
                value: Joined::Null,
                piece: 0,
            });
        }
        let entry = &mut self.entries[at];
        // Twice in one object: clients read the one or the other.
        if std::mem::replace(&mut entry.piece, self.pieces) == self.pieces {
            return Err(NotKept::UnknownShape);
        }
        Ok(&mut entry.value)
    }
}

impl Joined {
    /// Takes the next piece of the value.
    pub(super) fn join(&mut self, piece: RawJson<'_>, rule: Rule) -> Result<(), NotKept> {
        let text = piece.as_str();
        match (rule, text.as_bytes().first()) {
            _ if piece.is_null() => Ok(()),
            (Rule::Error, _) if !says_nothing(text) => Err(NotKept::ErrorInBand),
            (Rule::Refused, _) if !says_nothing(text) => Err(NotKept::UnknownShape),
            (Rule::Error | Rule::Refused | Rule::Skipped, _) => Ok(()),
            (Rule::Text, Some(b'"')) => self.continue_text(text),
            (Rule::Unknown, Some(b'"')) => {
                let inner = &text[1..text.len() - 1];
                match self {
                    // The next piece of a text, or the same word again?
                    Self::Text { inner: held, last }
                        if *last == inner.len() && *last > 0 && held.ends_with(inner) =>
                    {
                        Err(NotKept::UnknownShape)
                    }
                    _ => self.continue_text(text),
                }
            }
            (Rule::Unknown, Some(b'[')) if !says_nothing(self.raw()) && !says_nothing(text) => {
                Err(NotKept::UnknownShape)
            }
            (Rule::Same | Rule::Unknown, _) => self.same(text),
            (Rule::List, Some(b'[')) => self.continue_list(piece),
            (Rule::Object(table), Some(b'{')) => {
                if matches!(self, Self::Null) {
                    *self = Self::Object(Members::default());
                }
                let Self::Object(members) = self else {
                    return Err(NotKept::UnknownShape);
                };
                members.join(piece, table)
            }
            (Rule::Indexed(table), Some(b'[')) => self.continue_indexed(piece, table),
            (Rule::Text | Rule::List | Rule::Object(_) | Rule::Indexed(_), _) => {
                Err(NotKept::UnknownShape)
            }
        }
    }

    /// Whether it is a text, a list or an object with something in it.
    pub(super) fn says_something(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Text { inner, .. } => !inner.is_empty(),
            Self::List(inner) => !inner.is_empty(),
            Self::One(text) => !says_nothing(text),
            Self::Object(members) => !members.entries.is_empty(),
            Self::Indexed(all) => !all.is_empty(),
        }
    }

    pub(super) fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Text { inner, .. } => out.extend(["\"", inner, "\""]),
            Self::List(inner) => out.extend(["[", inner, "]"]),
            Self::One(text) => out.push_str(text),
            Self::Object(members) => write_object(members, out),
            Self::Indexed(all) => {
                let mut comma = "[";
                for (_, members) in all {
                    out.push_str(comma);
                    write_object(members, out);
                    comma = ",";
                }
                out.push_str(if all.is_empty() { "[]" } else { "]" });
            }
        }
    }

    fn raw(&self) -> &str {
        match self {
            Self::One(text) => text,
            Self::Null => "null",
            // None of them is compared: they say more than nothing.
            Self::Text { .. } | Self::List(_) | Self::Object(_) | Self::Indexed(_) => "[0]",
        }
    }

    fn continue_text(&mut self, quoted: &str) -> Result<(), NotKept> {
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
            _ => return Err(NotKept::UnknownShape),
        }
        Ok(())
    }

    fn continue_list(&mut self, piece: RawJson<'_>) -> Result<(), NotKept> {
        if matches!(self, Self::Null) {
            *self = Self::List(String::new());
        }
        let Self::List(inner) = self else {
            return Err(NotKept::UnknownShape);
        };
        for element in piece.elements().into_iter().flatten() {
            if !inner.is_empty() {
                inner.push(',');
            }
            inner.push_str(element.as_str());
        }
        Ok(())
    }

    fn continue_indexed(&mut self, piece: RawJson<'_>, table: Table) -> Result<(), NotKept> {
        if matches!(self, Self::Null) {
            *self = Self::Indexed(Vec::new());
        }
        let Self::Indexed(all) = self else {
            return Err(NotKept::UnknownShape);
        };
        for element in piece.elements().into_iter().flatten() {
            let index = element
                .member("index")
                .and_then(RawJson::integer)
                .and_then(|index| u64::try_from(index).ok());
            // More of them than any engine gives would be work for nothing.
            let index = index
                .filter(|index| *index < MOST_INDICES)
                .ok_or(NotKept::UnknownShape)?;
            let at = match all.binary_search_by_key(&index, |(own, _)| *own) {
                Ok(at) => at,
                Err(at) => {
                    all.insert(at, (index, Members::default()));
                    at
                }
            };
            all[at].1.join(element, table)?;
        }
        Ok(())
    }

    fn same(&mut self, text: &str) -> Result<(), NotKept> {
        match self {
            Self::Null => *self = Self::One(text.to_owned()),
            Self::One(held) if says_nothing(held) => text.clone_into(held),
            Self::One(held) if held == text || says_nothing(text) => {}
            _ => return Err(NotKept::UnknownShape),
        }
        Ok(())
    }
}

fn write_object(members: &Members, out: &mut String) {
    let mut object = Object::open(out);
    for (name, value) in members.iter() {
        value.write(object.key(name));
    }
    object.close();
}

/// `null`, and what is as good as that.
pub(super) fn says_nothing(text: &str) -> bool {
    matches!(text, "null" | "\"\"" | "[]" | "{}")
}
