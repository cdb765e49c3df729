//! Tracks whether a stream is complete: the engine sent a stop reason or its end marker.
//!
//! Only the engine's own events count. Streams of a route without an end marker are not tracked.

use dialect::{Dialect, StreamChunk, is_done};

/// The state of a stream's ending.
#[derive(Debug)]
pub(super) struct EndingTracker {
    /// The event that ends a stream of this dialect contains one of these; other events are not
    /// parsed.
    words: &'static [&'static [u8]],
    seen: bool,
}

impl EndingTracker {
    /// Creates the tracker for this dialect; `None` where streams have no end marker.
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

    /// Checks one event's data, and calls `chunk` to parse it where it may be the ending.
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

    /// Skips an event that is too long to parse: its content is unknown, so the stream counts as
    /// complete.
    pub(super) fn skip_event(&mut self) {
        self.seen = true;
    }

    /// Returns whether the engine has marked its stream as complete.
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
    fn each_dialect_has_its_own_end_marker() {
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
    fn end_markers_in_the_generated_text_are_ignored() {
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
