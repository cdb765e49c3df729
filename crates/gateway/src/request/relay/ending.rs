//! Whether a stream that has ended was whole: the engine said why it stopped, or that it is done.
//!
//! Only what the engine says counts, read from its events. A stream of a route that has no such word is never looked at.

use dialect::{Dialect, StreamChunk, is_done};

/// What is known of a stream's ending so far.
#[derive(Debug)]
pub(super) struct EndingTracker {
    /// One of them stands in the event that ends a stream of this dialect; an event without is not read.
    words: &'static [&'static [u8]],
    seen: bool,
}

impl EndingTracker {
    /// Of a stream in this dialect; `None` where streams do not say that they are whole.
    pub(super) fn of(dialect: Dialect) -> Option<Self> {
        let words: &[&[u8]] = match dialect {
            Dialect::Chat | Dialect::Completions => &[b"finish_reason"],
            Dialect::Messages => &[b"message_stop"],
            Dialect::Responses => &[
                b"response.completed",
                b"response.incomplete",
                b"response.failed",
            ],
            Dialect::Embeddings | Dialect::Rerank | Dialect::Score => return None,
        };
        Some(Self { words, seen: false })
    }

    /// Looks at one event's data, and where that may be an ending at what `chunk` reads in it.
    pub(super) fn observe_event<'a>(
        &mut self,
        data: &[u8],
        chunk: impl FnOnce() -> Option<&'a StreamChunk<'a>>,
    ) {
        let stands = |word: &&[u8]| data.windows(word.len()).any(|window| window == *word);
        if self.seen || !(is_done(data) || self.words.iter().any(stands)) {
            return;
        }
        self.seen = is_done(data) || chunk().is_some_and(StreamChunk::ends);
    }

    /// An event passed that is too long to be read: what it said is not known, and it is given the benefit of the doubt.
    pub(super) fn skip_event(&mut self) {
        self.seen = true;
    }

    /// Whether the engine has said that its stream is whole.
    pub(super) fn is_complete(&self) -> bool {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn whole(dialect: Dialect, events: &[&str]) -> bool {
        let mut ending = EndingTracker::of(dialect).expect("it has streams");
        for data in events {
            let chunk = StreamChunk::read(data.as_bytes());
            ending.observe_event(data.as_bytes(), || chunk.as_ref());
        }
        ending.is_complete()
    }

    #[test]
    #[contract("F20")]
    fn each_dialect_has_its_own_word_for_whole() {
        for (dialect, last) in [
            (
                Dialect::Chat,
                r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
            ),
            (
                Dialect::Completions,
                r#"{"choices":[{"text":"","finish_reason":"length"}]}"#,
            ),
            (Dialect::Chat, "[DONE]"),
            (Dialect::Messages, r#"{"type":"message_stop"}"#),
            (
                Dialect::Responses,
                r#"{"type":"response.completed","response":{"id":"r"}}"#,
            ),
            (
                Dialect::Responses,
                r#"{"type":"response.incomplete","response":{"id":"r"}}"#,
            ),
        ] {
            assert!(whole(dialect, &["{}", last]), "{last}");
        }
    }

    #[test]
    #[contract("F20")]
    fn words_of_the_generated_text_end_nothing() {
        for (dialect, data) in [
            (
                Dialect::Chat,
                r#"{"choices":[{"delta":{"content":"finish_reason"},"finish_reason":null}]}"#,
            ),
            (
                Dialect::Chat,
                r#"{"choices":[{"delta":{"content":"[DONE]"},"finish_reason":null}]}"#,
            ),
            (
                Dialect::Messages,
                r#"{"type":"content_block_delta","delta":{"text":"message_stop"}}"#,
            ),
            (
                Dialect::Responses,
                r#"{"type":"response.output_text.delta","delta":"response.completed"}"#,
            ),
        ] {
            assert!(!whole(dialect, &[data]), "{data}");
        }
    }
}
