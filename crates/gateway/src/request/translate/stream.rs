//! Translates a stream's events into the client's dialect, one by one.

use dialect::{ChatStream, ChunkOutcome, MessageStream};

/// The translation of one stream.
#[derive(Debug)]
pub(crate) enum StreamTranslator {
    /// Chunks of a chat to events of a message.
    Message(MessageStream),
    /// Events of a message to chunks of a chat.
    Chat(ChatStream),
}

impl StreamTranslator {
    pub(crate) fn push(&mut self, data: &[u8], out: &mut Vec<u8>) -> ChunkOutcome {
        match self {
            Self::Message(stream) => stream.push(data, out),
            Self::Chat(stream) => stream.push(data, out),
        }
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> ChunkOutcome {
        match self {
            Self::Message(stream) => stream.finish(out),
            Self::Chat(stream) => stream.finish(),
        }
    }
}
