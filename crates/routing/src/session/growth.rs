//! The keys of a session; and growth, which matches a request that begins with all of an earlier
//! one.
//!
//! A chat is cut where a reply begins: an earlier request may have ended there. A plain prompt is
//! cut into pieces, and an earlier one may have ended anywhere in a piece, so the rest after its
//! last whole piece is compared as well. Shared instructions alone therefore never make a session:
//! the later request must contain the earlier one to its end.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The keys of a request's session. Equal keys are one session: the caller mixes in everything that
/// separates sessions, such as the model and the salt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionKeys {
    /// Hash of the name that the client gave the session.
    pub name: Option<u64>,
    /// The earlier requests that it may continue, and the key for later ones.
    pub growth: Option<PromptGrowth>,
}

/// The earlier requests that a request may continue, and the key by which later ones find it.
///
/// ```
/// use routing::PromptGrowth;
///
/// let (hello, reply) = ((&b"hello"[..], false), (&b"hi"[..], true));
/// let first = PromptGrowth::of_turns(1, [hello]).unwrap();
/// let second = PromptGrowth::of_turns(1, [hello, reply, (&b"go on"[..], false)]).unwrap();
/// assert!(second.extends(&first) && !first.extends(&second));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptGrowth {
    /// Hashes of beginnings that may have been a request, longest first.
    from: Vec<u64>,
    /// Hash of the whole request, less its rest.
    to: u64,
    rest: PromptTail,
    /// The text after the shortest of `from`, where requests may end between two cuts.
    text: Vec<u8>,
}

/// The rest of a plain prompt after its last whole piece; empty in a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptTail {
    /// Its length.
    pub bytes: usize,
    /// Its hash.
    pub hash: u64,
}

impl PromptGrowth {
    /// Most beginnings that are looked up.
    pub const MOST: usize = 64;
    /// Bytes of a piece of a plain prompt.
    pub const PIECE: usize = 256;

    /// Creates the growth of a chat: its messages in order, and whether each is a reply. `None`: it
    /// has no messages.
    pub fn of_turns<'a>(
        seed: u64,
        messages: impl IntoIterator<Item = (&'a [u8], bool)>,
    ) -> Option<Self> {
        let mut chat = GrowingChat::new(seed);
        for (message, is_reply) in messages {
            chat.add(message, is_reply);
        }
        chat.growth()
    }

    /// Creates the growth of a plain prompt. `None`: it is shorter than a piece.
    pub fn of_text(seed: u64, text: &[u8]) -> Option<Self> {
        let (pieces, rest) = text.as_chunks::<{ Self::PIECE }>();
        let mut hash = seed;
        let mut from: Vec<u64> = pieces
            .iter()
            .map(|piece| {
                hash = xxh3_64_with_seed(piece, hash);
                hash
            })
            .collect();
        from.reverse();
        from.truncate(Self::MOST);
        let tail_start = pieces.len() * Self::PIECE - from.len().saturating_sub(1) * Self::PIECE;
        (!pieces.is_empty()).then(|| Self {
            from,
            to: hash,
            rest: PromptTail::of(rest),
            text: text[tail_start..].to_vec(),
        })
    }

    /// Returns whether it begins with all of `earlier`, and has more.
    pub fn extends(&self, earlier: &Self) -> bool {
        self.from.iter().enumerate().any(|(position, key)| {
            *key == earlier.to && self.has_tail_after(position, earlier.rest)
        })
    }

    /// Returns the keys to look up, each with its position.
    pub(super) fn lookup_keys(&self) -> impl Iterator<Item = (usize, u64)> {
        self.from.iter().copied().enumerate()
    }

    /// Returns the key to insert, and the rest that must follow it.
    pub(super) fn insert_key(&self) -> (u64, PromptTail) {
        (self.to, self.rest)
    }

    /// Returns whether `rest` and more follow the beginning at `position`.
    pub(super) fn has_tail_after(&self, position: usize, rest: PromptTail) -> bool {
        if self.text.is_empty() {
            // A chat has only these cuts; and if nothing follows the beginning, it has not grown.
            return rest.bytes == 0 && self.from[position] != self.to;
        }
        let start = (self.from.len() - 1 - position) * Self::PIECE;
        let text = &self.text[start..];
        text.len() > rest.bytes && PromptTail::of(&text[..rest.bytes]) == rest
    }
}

/// The growth of a chat under construction, message by message.
#[derive(Clone, Debug)]
pub struct GrowingChat {
    seed: u64,
    to: u64,
    /// Beginnings that end before a reply, the latest last; at most twice
    /// [`PromptGrowth::MOST`].
    from: Vec<u64>,
}

impl GrowingChat {
    /// Creates a chat without messages.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            to: seed,
            from: Vec::new(),
        }
    }

    /// Adds the next message; `is_reply`: the model wrote it.
    pub fn add(&mut self, message: &[u8], is_reply: bool) {
        if is_reply && self.to != self.seed {
            if self.from.len() == 2 * PromptGrowth::MOST {
                self.from.drain(..PromptGrowth::MOST);
            }
            self.from.push(self.to);
        }
        self.to = xxh3_64_with_seed(message, self.to);
    }

    /// Returns the growth; `None`: the chat has no messages.
    pub fn growth(self) -> Option<PromptGrowth> {
        let Self { seed, to, mut from } = self;
        from.reverse();
        from.truncate(PromptGrowth::MOST);
        (to != seed).then(|| PromptGrowth {
            from,
            to,
            rest: PromptTail::of(&[]),
            text: Vec::new(),
        })
    }
}

impl PromptTail {
    fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.len(),
            hash: xxh3_64_with_seed(bytes, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(length: usize) -> Vec<u8> {
        (0..length)
            .map(|i| u8::try_from(i * 7 % 251).unwrap())
            .collect()
    }

    fn of(text: &[u8]) -> PromptGrowth {
        PromptGrowth::of_text(1, text).unwrap()
    }

    #[test]
    fn a_prompt_extends_another_that_ended_at_any_position() {
        let long = text(20 * PromptGrowth::PIECE + 5);
        let later = of(&long);
        for earlier in [256, 257, 511, 512, 2_000, 5_120, 5_124] {
            assert!(later.extends(&of(&long[..earlier])), "{earlier}");
        }
        assert!(!later.extends(&later), "an equal prompt is no extension");
        let mut other = long.clone();
        for changed in [0, 255, 1_999] {
            other[changed] ^= 1;
            assert!(!of(&other).extends(&of(&long[..2_000])), "{changed}");
            other[changed] ^= 1;
        }
        assert_eq!(PromptGrowth::of_text(1, &long[..255]), None);
    }

    #[test]
    fn prompts_that_share_only_their_instructions_do_not_extend_each_other() {
        let system = text(2_000);
        let prompt = |question: &str| [&system, question.as_bytes()].concat();
        let short = of(&prompt("why?"));
        assert!(!of(&prompt(&"how is it done? ".repeat(40))).extends(&short));
        assert!(!of(&prompt("what?")).extends(&short));
        assert!(of(&prompt("why? because")).extends(&short));
    }

    #[test]
    fn a_chat_extends_another_if_a_reply_follows_it() {
        let chat = |messages: &[(&'static str, bool)]| {
            PromptGrowth::of_turns(
                1,
                messages
                    .iter()
                    .map(|(text, reply)| (text.as_bytes(), *reply)),
            )
            .unwrap()
        };
        let first = chat(&[("system", false), ("one", false)]);
        let second = chat(&[
            ("system", false),
            ("one", false),
            ("reply", true),
            ("two", false),
        ]);
        assert!(second.extends(&first));
        assert!(!second.extends(&second));
        assert!(!chat(&[("system", false), ("other", false), ("reply", true)]).extends(&first));
        assert!(
            !first.extends(&chat(&[("system", false)])),
            "no reply stands between them"
        );
        assert_eq!(PromptGrowth::of_turns(1, []), None);
    }

    #[test]
    fn no_more_prefixes_are_stored_than_are_looked_up() {
        let long = text(200 * PromptGrowth::PIECE);
        let later = of(&long);
        assert_eq!(
            (later.from.len(), later.text.len()),
            (
                PromptGrowth::MOST,
                (PromptGrowth::MOST - 1) * PromptGrowth::PIECE
            )
        );
        assert!(later.extends(&of(&long[..190 * PromptGrowth::PIECE + 3])));
        assert!(
            !later.extends(&of(&long[..100 * PromptGrowth::PIECE])),
            "too much has been added"
        );
    }
}
