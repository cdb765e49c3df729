//! What puts the events of a stream into the client's words, one after the other.

use dialect::{ChatStream, ChunkOutcome, MessageStream};

/// The translation of one stream.
#[derive(Debug)]
pub(crate) enum StreamTranslator {
    /// Chunks of a chat become the events of a message.
    Message(MessageStream),
    /// Events of a message become the chunks of a chat.
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
