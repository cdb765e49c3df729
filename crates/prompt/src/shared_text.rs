//! A long text in pieces that the texts which continue it share.
//!
//! **Invariant**: equal pieces are found byte by byte. The hashes of a text's beginnings only find
//! candidates for the comparison.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes between two hashes of a text's beginnings.
pub(crate) const STRIDE: usize = 4096;

/// Bytes of a piece beside its text, about.
const PIECE_BYTES: usize = 48;

/// Returns the hashes of a text's beginnings of one stride, two strides and so on.
pub(crate) fn beginnings(seed: u64, text: &str) -> Vec<u64> {
    let mut last = seed;
    let hash = |block: &[u8]| {
        last = xxh3_64_with_seed(block, last);
        last
    };
    text.as_bytes().chunks_exact(STRIDE).map(hash).collect()
}

/// A text in pieces, with the hashes of its beginnings.
#[derive(Clone, Debug)]
pub(crate) struct SharedText {
    seed: u64,
    pieces: Vec<Arc<str>>,
    /// The end of each piece, in bytes of the whole text.
    ends: Vec<usize>,
    beginnings: Vec<u64>,
}

impl SharedText {
    /// Returns an empty text. Hashes of texts with different seeds do not match.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            pieces: Vec::new(),
            ends: Vec::new(),
            beginnings: Vec::new(),
        }
    }

    pub(crate) fn pieces(&self) -> &[Arc<str>] {
        &self.pieces
    }

    pub(crate) fn beginnings(&self) -> &[u64] {
        &self.beginnings
    }

    /// Returns the bytes of the first pieces.
    pub(crate) fn bytes_of(&self, pieces: usize) -> usize {
        pieces.checked_sub(1).map_or(0, |last| self.ends[last])
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes_of(self.pieces.len())
    }

    /// Returns the memory that the text takes, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        // A hash is in this list and a key of the memory's map.
        self.bytes()
            + self.pieces.len() * PIECE_BYTES
            + self.beginnings.len() * 5 * size_of::<u64>()
    }

    /// Returns how many pieces `text` begins with.
    pub(crate) fn matching(&self, text: &str) -> usize {
        let mut rest = text.as_bytes();
        self.pieces
            .iter()
            .take_while(|piece| {
                let matches = rest.strip_prefix(piece.as_bytes());
                rest = matches.unwrap_or(rest);
                matches.is_some()
            })
            .count()
    }

    /// Returns the text of the first pieces and new ones.
    pub(crate) fn continued(
        &self,
        pieces: usize,
        new: impl ExactSizeIterator<Item = Arc<str>>,
    ) -> Self {
        let mut text = Self {
            seed: self.seed,
            pieces: Vec::with_capacity(pieces + new.len()),
            ends: Vec::with_capacity(pieces + new.len()),
            beginnings: self.beginnings[..self.bytes_of(pieces) / STRIDE].to_vec(),
        };
        text.pieces.extend_from_slice(&self.pieces[..pieces]);
        text.ends.extend_from_slice(&self.ends[..pieces]);
        let mut end = text.bytes();
        for piece in new {
            end += piece.len();
            text.pieces.push(piece);
            text.ends.push(end);
        }
        text.hash_rest();
        text
    }

    /// Adds the missing hashes.
    fn hash_rest(&mut self) {
        let start = self.beginnings.len() * STRIDE;
        let first = self.ends.partition_point(|end| *end <= start);
        let mut skipped = start - self.bytes_of(first);
        let mut last = self.beginnings.last().copied().unwrap_or(self.seed);
        let mut block = Vec::with_capacity(STRIDE);
        for piece in &self.pieces[first..] {
            let mut rest = &piece.as_bytes()[skipped..];
            skipped = 0;
            while !rest.is_empty() {
                let (next, left) = rest.split_at(rest.len().min(STRIDE - block.len()));
                block.extend_from_slice(next);
                rest = left;
                if block.len() == STRIDE {
                    last = xxh3_64_with_seed(&block, last);
                    self.beginnings.push(last);
                    block.clear();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts a text into pieces of these sizes, in turn.
    fn pieces(text: &str, sizes: &[usize]) -> Vec<Arc<str>> {
        let mut rest = text;
        let mut pieces = Vec::new();
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                return pieces;
            }
            let (piece, left) = rest.split_at(*size.min(&rest.len()));
            pieces.push(Arc::from(piece));
            rest = left;
        }
        pieces
    }

    #[test]
    fn a_continued_text_has_the_hashes_of_the_whole() {
        let text: String = (0..9_000).map(|number| format!("{number} ")).collect();
        for sizes in [&[1_000][..], &[4_096], &[10, 9_000], &[20_000], &[1, 4_095]] {
            let all = pieces(&text, sizes);
            for kept in 0..=all.len().min(12) {
                let first = SharedText::new(7).continued(0, all[..kept].iter().cloned());
                let further = SharedText::new(7).continued(0, all.iter().cloned());
                for earlier in [&first, &further] {
                    let whole = earlier.continued(kept, all[kept..].iter().cloned());
                    assert_eq!(whole.beginnings(), beginnings(7, &text));
                    assert_eq!(whole.bytes(), text.len());
                    assert_eq!(whole.matching(&text), all.len());
                }
            }
        }
    }

    #[test]
    fn a_text_matches_up_to_the_first_piece_with_a_difference() {
        let known = SharedText::new(0).continued(0, ["ab", "cd"].map(Arc::from).into_iter());
        for (text, matching) in [
            ("", 0),
            ("a", 0),
            ("ab", 1),
            ("abc", 1),
            ("abcdx", 2),
            ("abxd", 1),
        ] {
            assert_eq!(known.matching(text), matching, "{text}");
        }
    }

    #[test]
    fn texts_of_different_seeds_have_no_hash_in_common() {
        let text = "x".repeat(2 * STRIDE);
        let [one, other] = [1, 2].map(|seed| beginnings(seed, &text));
        assert!(one.iter().all(|hash| !other.contains(hash)));
    }
}
