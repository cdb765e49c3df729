//! The start of the message, and its blocks.

use super::{MessageStream, OpenBlock, StreamPhase};
use crate::{
    RawJson, Usage,
    anthropic::{
        event::event,
        reply::{head, message_id, write_usage},
    },
    json::ObjectWriter,
};

impl MessageStream {
    pub(super) fn begin(&mut self, chunk: RawJson<'_>, out: &mut Vec<u8>) {
        self.state = StreamPhase::Begun;
        let id = chunk.member("id").and_then(RawJson::string);
        let named = chunk.member("model").and_then(RawJson::string);
        let counted = self.usage.unwrap_or(Usage {
            prompt_tokens: self.prompt_tokens,
            ..Usage::default()
        });
        event(out, "message_start", |object| {
            let mut message = object.object("message");
            head(
                &mut message,
                &message_id(id.as_deref()),
                named.as_deref().unwrap_or(&self.model),
            );
            message.raw("content", "[]");
            message.raw("stop_reason", "null");
            message.raw("stop_sequence", "null");
            write_usage(&mut message, counted);
            message.close();
        });
    }

    /// Writes a piece of text or of thinking.
    pub(super) fn write_text(&mut self, kind: OpenBlock, text: &str, out: &mut Vec<u8>) {
        let (word, delta) = if kind == OpenBlock::Thinking {
            ("thinking", "thinking_delta")
        } else {
            ("text", "text_delta")
        };
        if self.open != Some(kind) {
            self.open_block(kind, out, |block| {
                block.text("type", word);
                block.text(word, "");
                if kind == OpenBlock::Thinking {
                    block.text("signature", "");
                }
            });
        }
        self.delta(out, delta, word, text);
    }

    pub(super) fn open_block(
        &mut self,
        kind: OpenBlock,
        out: &mut Vec<u8>,
        describe: impl FnOnce(&mut ObjectWriter<'_>),
    ) {
        self.close(out);
        let index = self.blocks;
        event(out, "content_block_start", |object| {
            object.number("index", index);
            let mut block = object.object("content_block");
            describe(&mut block);
            block.close();
        });
        self.blocks += 1;
        self.open = Some(kind);
    }

    pub(super) fn delta(&self, out: &mut Vec<u8>, kind: &str, member: &str, text: &str) {
        event(out, "content_block_delta", |object| {
            object.number("index", self.blocks.saturating_sub(1));
            let mut delta = object.object("delta");
            delta.text("type", kind);
            delta.text(member, text);
            delta.close();
        });
    }

    pub(super) fn close(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            event(out, "content_block_stop", |object| {
                object.number("index", self.blocks.saturating_sub(1))
            });
        }
    }
}
