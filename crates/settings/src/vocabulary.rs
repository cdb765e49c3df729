//! Types of `kv-blocks` that values are read into.

use kv_blocks::{BlockSize, Role, Tier};

use crate::{CheckedValue, Setting, ValueKind, kinds::BLOCK_SIZE, word};

impl Setting for Role {
    const KIND: ValueKind = ValueKind::Word(&[word("unified"), word("prefill"), word("decode")]);

    fn read(value: &CheckedValue) -> Option<Self> {
        match value.word()? {
            "prefill" => Some(Self::Prefill),
            "decode" => Some(Self::Decode),
            _ => Some(Self::Unified),
        }
    }
}

impl Setting for Tier {
    const KIND: ValueKind =
        ValueKind::Word(&[word("device"), word("host"), word("disk"), word("remote")]);

    fn read(value: &CheckedValue) -> Option<Self> {
        let word = value.word()?;
        Self::ALL.into_iter().find(|tier| tier.as_str() == word)
    }
}

impl Setting for BlockSize {
    const KIND: ValueKind = BLOCK_SIZE;

    fn read(value: &CheckedValue) -> Option<Self> {
        Self::new(value.int_or_word()?).ok()
    }
}
