//! The kind of an entry: its dialect, its form, and whether it has the usage.

use dialect::Dialect;

/// The form in which the reply arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredForm {
    Whole,
    Stream,
}

/// The kind of an entry, stored as one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryKind {
    dialect: Dialect,
    has_usage: bool,
    form: StoredForm,
}

const USAGE: u8 = 0x80;
const STREAMED: u8 = 0x40;

impl EntryKind {
    pub(super) fn new(dialect: Dialect, has_usage: bool, form: StoredForm) -> Self {
        Self {
            dialect,
            has_usage,
            form,
        }
    }

    pub(super) fn as_u8(self) -> u8 {
        let usage = if self.has_usage { USAGE } else { 0 };
        let streamed = if self.form == StoredForm::Stream {
            STREAMED
        } else {
            0
        };
        number(self.dialect) | usage | streamed
    }

    /// Returns `None` for an entry of another dialect.
    pub fn read(label: u8, dialect: Dialect) -> Option<Self> {
        let form = if label & STREAMED == 0 {
            StoredForm::Whole
        } else {
            StoredForm::Stream
        };
        let own = label & !(USAGE | STREAMED) == number(dialect);
        own.then_some(Self {
            dialect,
            has_usage: label & USAGE != 0,
            form,
        })
    }

    /// Returns whether the reply has its usage. A stream that did not request it lacks it; a whole
    /// reply has the engine's.
    pub fn is_complete_reply(self) -> bool {
        self.has_usage || self.form == StoredForm::Whole
    }
}

fn number(dialect: Dialect) -> u8 {
    match dialect {
        Dialect::Chat => 1,
        Dialect::Completions => 2,
        Dialect::Messages => 3,
        Dialect::Responses
        | Dialect::Embeddings
        | Dialect::Rerank
        | Dialect::Score
        | Dialect::ChatBatch
        | Dialect::TokenIds
        | Dialect::SglangGenerate => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_an_entry_is_read_back_and_only_for_its_dialect() {
        let dialects = [Dialect::Chat, Dialect::Completions, Dialect::Messages];
        for dialect in dialects {
            for (has_usage, form, complete) in [
                (true, StoredForm::Whole, true),
                (false, StoredForm::Whole, true),
                (true, StoredForm::Stream, true),
                (false, StoredForm::Stream, false),
            ] {
                let kind = EntryKind {
                    dialect,
                    has_usage,
                    form,
                };
                assert_eq!(EntryKind::read(kind.as_u8(), dialect), Some(kind));
                assert_eq!(kind.is_complete_reply(), complete);
                for other in dialects.into_iter().filter(|other| *other != dialect) {
                    assert_eq!(EntryKind::read(kind.as_u8(), other), None);
                }
            }
        }
    }
}
