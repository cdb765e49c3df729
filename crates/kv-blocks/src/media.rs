//! Images, audio and videos in the identity of blocks.

use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use crate::BlockSize;

/// A multimodal item of a prompt. Its tokens are placeholders, which are the same for every item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaItem {
    /// The engine's hash of the item's content, or the client's name for it.
    pub identifier: Arc<str>,
    /// The first of its tokens, from the start of the prompt.
    pub offset: u32,
    /// The number of its tokens.
    pub length: u32,
}

impl MediaItem {
    fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.length)
    }

    /// Returns the place of its first token relative to the token at `start`.
    fn place_from(&self, start: u64) -> i64 {
        i64::from(self.offset) - i64::try_from(start).unwrap_or(i64::MAX)
    }
}

/// Identity of the multimodal items that a block has tokens of, with their places relative to the
/// block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaHash(u64);

impl MediaHash {
    /// Returns the hash of items, in their order in the prompt: each with the place of its first
    /// token relative to the first token of the block, negative where the item begins before it.
    /// `None` without any.
    ///
    /// ```
    /// use kv_blocks::MediaHash;
    ///
    /// assert_eq!(MediaHash::of([]), None);
    /// assert_eq!(MediaHash::of([("a", 3)]), MediaHash::of([("a", 3)]));
    /// assert_ne!(MediaHash::of([("a", 3)]), MediaHash::of([("a", -3)]));
    /// ```
    pub fn of<'a>(items: impl IntoIterator<Item = (&'a str, i64)>) -> Option<Self> {
        let mut items = items.into_iter().peekable();
        items.peek()?;
        let mut hash = Xxh3::new();
        for (identifier, start) in items {
            // The length ends the identifier: no two lists of items give the same bytes.
            hash.update(&start.to_le_bytes());
            hash.update(&(identifier.len() as u64).to_le_bytes());
            hash.update(identifier.as_bytes());
        }
        Some(Self(hash.digest()))
    }

    /// Returns the two words that stand for the items behind the tokens of their block.
    pub(crate) fn words(self) -> [u32; 2] {
        let bytes = self.0.to_le_bytes();
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        [word(0), word(4)]
    }
}

/// The multimodal items of a prompt, in the order of their places and without overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptMedia(Arc<[MediaItem]>);

impl PromptMedia {
    /// Sorts the items; `None` if two of them overlap or one has no tokens.
    pub fn new(mut items: Vec<MediaItem>) -> Option<Self> {
        items.sort_by_key(|item| item.offset);
        let overlaps = |two: &[MediaItem]| two[0].end() > u64::from(two[1].offset);
        if items.iter().any(|item| item.length == 0) || items.windows(2).any(overlaps) {
            return None;
        }
        Some(Self(items.into()))
    }

    /// Returns the items, in the order of their places.
    pub fn items(&self) -> &[MediaItem] {
        &self.0
    }

    /// Returns the identifiers of the items that the block at `index` has tokens of, each with the
    /// place of its first token relative to the first token of the block.
    pub fn in_block(
        &self,
        index: usize,
        size: BlockSize,
    ) -> impl Iterator<Item = (&Arc<str>, i64)> {
        let start = index as u64 * u64::from(size.tokens());
        let end = start + u64::from(size.tokens());
        self.0
            .iter()
            .skip_while(move |item| item.end() <= start)
            .take_while(move |item| u64::from(item.offset) < end)
            .map(move |item| (&item.identifier, item.place_from(start)))
    }

    /// Returns the hash of the items in each block of `size` tokens, first block first.
    pub(crate) fn hashes(&self, size: BlockSize) -> impl Iterator<Item = Option<MediaHash>> {
        let mut left = &self.0[..];
        (0_u64..).step_by(size.len()).map(move |start| {
            let end = start + u64::from(size.tokens());
            while left.first().is_some_and(|item| item.end() <= start) {
                left = &left[1..];
            }
            let here = left
                .iter()
                .take_while(|item| u64::from(item.offset) < end)
                .map(|item| (&*item.identifier, item.place_from(start)));
            MediaHash::of(here)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(identifier: &str, offset: u32, length: u32) -> MediaItem {
        MediaItem {
            identifier: identifier.into(),
            offset,
            length,
        }
    }

    #[test]
    fn each_block_has_the_items_that_it_has_tokens_of() {
        let media = PromptMedia::new(vec![
            item("b", 9, 1),
            item("a", 2, 5),
            item("c", u32::MAX, 7),
        ])
        .expect("they do not overlap");
        let hashes: Vec<_> = media.hashes(BlockSize::new(4).unwrap()).take(4).collect();
        let want: [&[(&str, i64)]; 4] = [&[("a", 2)], &[("a", -2)], &[("b", 1)], &[]];
        assert_eq!(
            hashes,
            want.map(|items| MediaHash::of(items.iter().copied()))
        );
        let long = media.hashes(BlockSize::new(16).unwrap()).next().unwrap();
        assert_eq!(long, MediaHash::of([("a", 2), ("b", 9)]));
        for (index, items) in want.into_iter().enumerate() {
            let here = media.in_block(index, BlockSize::new(4).unwrap());
            let here: Vec<_> = here.map(|(name, place)| (&**name, place)).collect();
            assert_eq!(here, items, "{index}");
        }
    }

    #[test]
    fn items_that_overlap_or_have_no_tokens_are_refused() {
        assert!(PromptMedia::new(vec![item("a", 0, 5), item("b", 4, 1)]).is_none());
        assert!(PromptMedia::new(vec![item("a", 0, 5), item("b", 5, 0)]).is_none());
        assert!(PromptMedia::new(vec![item("a", 0, 5), item("b", 5, 1)]).is_some());
    }

    #[test]
    fn no_two_lists_of_items_have_the_same_hash() {
        let lists: [&[(&str, i64)]; 6] = [
            &[("ab", 0)],
            &[("a", 0), ("b", 0)],
            &[("b", 0), ("a", 0)],
            &[("ab", 1)],
            &[("", 0)],
            &[("", 0), ("", 0)],
        ];
        let hashes = lists.map(|items| MediaHash::of(items.iter().copied()));
        for (at, hash) in hashes.iter().enumerate() {
            assert!(hash.is_some() && !hashes[..at].contains(hash), "{at}");
        }
    }
}
