//! Conversations of recent requests, so that the next turn of one costs only what is new in it.
//!
//! A turn is found by the beginning of its messages or of its text; no header names it. What it has
//! in common with an earlier turn is established byte by byte: equal messages are not parsed again,
//! an equal beginning of the rendered text is not tokenized again, and equal leading tokens are not
//! hashed again. The chat itself is rendered whole, since a template may write earlier messages
//! differently when later ones follow; only where that is known not to happen, it is rendered from
//! the new messages on (`template/resume.rs`).
//!
//! **Invariant**: the ids are those of [`PromptModel::chat_tokens`](crate::PromptModel::chat_tokens),
//! whatever is remembered.

mod memory;
mod turn;

use std::sync::Arc;

use kv_blocks::PromptBlocks;

pub use self::{
    memory::ConversationMemory,
    turn::{ConversationTurn, RenderedTurn, TokenizedTurn},
};
use crate::{
    SaltGroup,
    chat::ParsedChat,
    shared_text::SharedText,
    template::{EarlierLoop, EarlierText, LoopRecord},
};

/// Bytes that one token of a conversation takes: its id, and its part of the hash chains of all
/// block sizes, about.
const TOKEN_BYTES: usize = 8;

/// A conversation as it was at one turn.
#[derive(Debug)]
pub(crate) struct Conversation {
    /// Its messages and tools. They have no messages where those cannot be read one by one.
    chat: ParsedChat,
    /// The rendered text up to its last cut point; each piece ends at one.
    text: SharedText,
    /// The tokens up to the end of each piece.
    token_ends: Vec<usize>,
    /// All tokens of the turn.
    blocks: Arc<PromptBlocks>,
    /// The template's loop over the messages.
    loop_record: Option<Arc<LoopRecord>>,
}

impl Conversation {
    /// Returns the tokens of the first pieces of the text.
    fn tokens_of(&self, pieces: usize) -> usize {
        pieces
            .checked_sub(1)
            .map_or(0, |last| self.token_ends[last])
    }

    /// Returns what is known of the text of its next turn, whose render may skip so many iterations
    /// of the loop over the messages.
    fn earlier_text(&self, most: usize) -> EarlierText<'_> {
        let main_loop = self.loop_record.as_ref().map(|record| EarlierLoop {
            record: Arc::clone(record),
            most,
            text_bytes: self.text.bytes(),
        });
        EarlierText {
            pieces: self.text.pieces(),
            main_loop,
        }
    }

    /// Returns the memory that the conversation takes, about.
    fn memory_bytes(&self) -> usize {
        self.chat.memory_bytes()
            + self.text.memory_bytes()
            + self.token_ends.len() * size_of::<usize>()
            + self.blocks.token_count() as usize * TOKEN_BYTES
            + self
                .loop_record
                .as_ref()
                .map_or(0, |record| record.memory_bytes())
    }
}

/// Whose a conversation is: no other owner finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    model: u64,
    group: SaltGroup,
}

/// What conversations are found by. Each owner has its own.
#[derive(Clone, Copy, Debug)]
struct Seeds {
    messages: u64,
    text: u64,
}

impl Seeds {
    fn of(owner: Owner) -> Self {
        let messages = owner
            .group
            .number()
            .wrapping_add(owner.model.wrapping_mul(2));
        Self {
            messages,
            text: messages.wrapping_add(1),
        }
    }
}
