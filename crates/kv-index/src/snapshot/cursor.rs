//! Decodes numbers and texts from the bytes of a page.

use std::sync::Arc;

use kv_blocks::{BlockSize, EngineHash, SequenceHash};

use super::SnapshotError;

/// A position in a page.
#[derive(Debug)]
pub(super) struct Cursor<'p> {
    remaining: &'p [u8],
    /// Offset in the file behind the page.
    end: u64,
}

impl<'p> Cursor<'p> {
    /// Creates a cursor at the start of a page that is at `start` in the file.
    pub(super) fn new(page: &'p [u8], start: u64) -> Self {
        Self {
            remaining: page,
            end: start + page.len() as u64,
        }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.remaining.is_empty()
    }

    /// Returns an error at the last read position.
    pub(super) fn damaged(&self, what: String) -> SnapshotError {
        SnapshotError::Damaged {
            what,
            at: self.end - self.remaining.len() as u64,
        }
    }

    pub(super) fn u8(&mut self) -> Result<u8, SnapshotError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, SnapshotError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, SnapshotError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn block_size(&mut self) -> Result<BlockSize, SnapshotError> {
        let tokens = self.u32()?;
        BlockSize::new(u64::from(tokens)).map_err(|error| self.damaged(error.to_string()))
    }

    /// Reads a block size; 0 stands for none.
    pub(super) fn optional_block_size(&mut self) -> Result<Option<BlockSize>, SnapshotError> {
        let tokens = self.u32()?;
        if tokens == 0 {
            return Ok(None);
        }
        BlockSize::new(u64::from(tokens))
            .map(Some)
            .map_err(|error| self.damaged(error.to_string()))
    }

    /// Reads a text with its length in front.
    pub(super) fn text(&mut self) -> Result<Arc<str>, SnapshotError> {
        let length = self.u32()?;
        let bytes = self.bytes(u64::from(length))?;
        // The text itself is not shown: it may be a salt.
        str::from_utf8(bytes)
            .map(Arc::from)
            .map_err(|_| self.damaged("a text is not UTF-8".to_owned()))
    }

    /// Reads a text that may be absent.
    pub(super) fn optional_text(&mut self) -> Result<Option<Arc<str>>, SnapshotError> {
        Ok(if self.flag()? {
            Some(self.text()?)
        } else {
            None
        })
    }

    pub(super) fn flag(&mut self) -> Result<bool, SnapshotError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.damaged(format!("flag {other}, expected 0 or 1"))),
        }
    }

    /// Appends `count` hashes.
    pub(super) fn sequence_hashes(
        &mut self,
        count: u32,
        to: &mut Vec<SequenceHash>,
    ) -> Result<(), SnapshotError> {
        to.extend(self.words(count)?.map(SequenceHash));
        Ok(())
    }

    /// Appends `count` names.
    pub(super) fn engine_hashes(
        &mut self,
        count: u32,
        to: &mut Vec<EngineHash>,
    ) -> Result<(), SnapshotError> {
        to.extend(self.words(count)?.map(EngineHash));
        Ok(())
    }

    fn words(
        &mut self,
        count: u32,
    ) -> Result<impl ExactSizeIterator<Item = u64> + use<'p>, SnapshotError> {
        let (words, _) = self.bytes(u64::from(count) * 8)?.as_chunks();
        Ok(words.iter().map(|word| u64::from_le_bytes(*word)))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let Some((array, remaining)) = self.remaining.split_first_chunk() else {
            return Err(self.short(N as u64));
        };
        self.remaining = remaining;
        Ok(*array)
    }

    fn bytes(&mut self, count: u64) -> Result<&'p [u8], SnapshotError> {
        let split = usize::try_from(count)
            .ok()
            .and_then(|count| self.remaining.split_at_checked(count));
        let Some((bytes, remaining)) = split else {
            return Err(self.short(count));
        };
        self.remaining = remaining;
        Ok(bytes)
    }

    fn short(&self, needed: u64) -> SnapshotError {
        self.damaged(format!(
            "a field of {needed} bytes, expected at most the {} left of its page",
            self.remaining.len()
        ))
    }
}
