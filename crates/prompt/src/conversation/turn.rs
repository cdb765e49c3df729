//! One turn of a conversation, from its request to its tokens.

use std::sync::Arc;

use kv_blocks::{HashScheme, PromptBlocks};

use super::{
    Conversation, Owner, Seeds,
    memory::{ConversationMatch, ConversationMemory},
};
use crate::{
    ChatRequest, PromptError, PromptModel, SaltGroup,
    chat::ParsedChat,
    shared_text::SharedText,
    template::{EarlierText, RenderedText},
    tokenizer::{EncodedText, TextCut},
};

/// A request whose chat is to be tokenized, and the earlier turn that it continues.
#[derive(Debug)]
pub struct ConversationTurn<'a> {
    parts: TurnParts<'a>,
    earlier: Option<ConversationMatch>,
    /// How many messages of the earlier turn it begins with.
    known_messages: usize,
}

/// What every step of a turn uses.
#[derive(Clone, Copy, Debug)]
struct TurnParts<'a> {
    model: &'a PromptModel,
    memory: &'a ConversationMemory,
    group: SaltGroup,
    chat: ChatRequest<'a>,
}

/// A turn with its rendered text.
#[derive(Debug)]
pub struct RenderedTurn<'a> {
    parts: TurnParts<'a>,
    earlier: Option<ConversationMatch>,
    /// How the text begins with that of the earlier turn, and its rest.
    text: RenderedText,
    /// The messages and tools, if they can be read one by one.
    chat: Option<ParsedChat>,
}

/// The tokens of a turn.
#[derive(Debug)]
pub struct TokenizedTurn {
    /// All of its tokens, as blocks.
    pub blocks: Arc<PromptBlocks>,
    /// How many of them no earlier prompt contained.
    pub new_tokens: u32,
}

impl TurnParts<'_> {
    fn owner(&self) -> Owner {
        Owner {
            model: self.model.number(),
            group: self.group,
        }
    }

    fn seeds(&self) -> Seeds {
        Seeds::of(self.owner())
    }

    /// Returns whether the turn can continue another one, and be continued.
    fn is_continuable(&self) -> bool {
        // Special tokens are added to a whole prompt, and a message that stays open is cut off.
        !self.chat.add_special_tokens
            && !self.chat.continue_final_message
            && self.model.tokenizer().has_cuts()
    }
}

impl<'a> ConversationTurn<'a> {
    /// Finds the remembered turn of the group that a request continues.
    pub fn find(
        model: &'a PromptModel,
        memory: &'a ConversationMemory,
        group: SaltGroup,
        chat: ChatRequest<'a>,
    ) -> Self {
        let parts = TurnParts {
            model,
            memory,
            group,
            chat,
        };
        let earlier = parts
            .is_continuable()
            .then(|| memory.find(parts.owner(), parts.seeds().messages, chat.messages))
            .flatten();
        let known_messages = earlier.as_ref().map_or(0, |earlier| {
            let messages = &earlier.conversation.chat.messages;
            messages.json().matching(chat.messages)
        });
        Self {
            parts,
            earlier,
            known_messages,
        }
    }

    /// Returns the bytes of its messages (JSON) that the earlier turn has not.
    pub fn new_bytes(&self) -> usize {
        let known = self.earlier.as_ref().map_or(0, |earlier| {
            let messages = &earlier.conversation.chat.messages;
            messages.json().bytes_of(self.known_messages)
        });
        self.parts.chat.messages.len() - known
    }

    /// Renders the chat. `now_unix_s` is for templates that write the current date.
    pub fn render(self, now_unix_s: i64) -> Result<RenderedTurn<'a>, PromptError> {
        let Self {
            parts,
            earlier,
            known_messages,
        } = self;
        if parts.is_continuable()
            && let Some((chat, text)) = parts.render_parsed(&earlier, known_messages, now_unix_s)?
        {
            let turn = RenderedTurn {
                parts,
                earlier,
                text,
                chat: Some(chat),
            };
            return Ok(turn.find_by_text());
        }
        let text = RenderedText {
            known_pieces: 0,
            rest: parts.model.chat_text(&parts.chat, now_unix_s)?,
            loop_record: None,
        };
        let turn = RenderedTurn {
            parts,
            earlier: None,
            text,
            chat: None,
        };
        Ok(turn.find_by_text())
    }
}

impl TurnParts<'_> {
    /// Renders the chat from the messages of the earlier turn and the new ones. `None`: the whole
    /// chat must be read at once, or it has an error, which that will tell.
    fn render_parsed(
        &self,
        earlier: &Option<ConversationMatch>,
        known_messages: usize,
        now_unix_s: i64,
    ) -> Result<Option<(ParsedChat, RenderedText)>, PromptError> {
        let templates = self.model.templates()?;
        let none = ParsedChat::empty(self.seeds().messages);
        let before = earlier
            .as_ref()
            .map_or(&none, |earlier| &earlier.conversation.chat);
        let rendered =
            ParsedChat::read(templates, &self.chat, before, known_messages).and_then(|chat| {
                let text = earlier
                    .as_ref()
                    .map_or_else(EarlierText::default, |earlier| {
                        let most = chat.common_iterations(templates, before, known_messages);
                        earlier.conversation.earlier_text(most)
                    });
                let text = chat.render(templates, &self.chat, now_unix_s, text)?;
                Ok((chat, text))
            });
        match rendered {
            Ok(rendered) => Ok(Some(rendered)),
            // Read at once, the chat is as long.
            Err(
                error @ (PromptError::Cancelled
                | PromptError::Unsupported {
                    is_too_long: true, ..
                }),
            ) => Err(error),
            Err(_) => Ok(None),
        }
    }
}

impl RenderedTurn<'_> {
    /// Finds an earlier turn by the text, unless one was found by its messages.
    fn find_by_text(mut self) -> Self {
        if self.text.known_pieces > 0 || !self.parts.is_continuable() {
            return self;
        }
        let (owner, seed) = (self.parts.owner(), self.parts.seeds().text);
        self.earlier = self.parts.memory.find(owner, seed, &self.text.rest);
        if let Some(earlier) = &self.earlier {
            let known = &earlier.conversation.text;
            self.text.known_pieces = known.matching(&self.text.rest);
            self.text
                .rest
                .drain(..known.bytes_of(self.text.known_pieces));
        }
        self
    }

    /// Returns the bytes of its text whose tokens are not known.
    pub fn new_bytes(&self) -> usize {
        let special = self.parts.chat.add_special_tokens;
        let group = self.parts.group;
        self.parts.model.new_bytes(group, &self.text.rest, special)
    }

    /// Returns the bytes of its text that the earlier turn has not.
    pub fn rest_bytes(&self) -> usize {
        self.text.rest.len()
    }

    /// Computes the tokens, and remembers the turn.
    pub fn tokenize(self, scheme: HashScheme) -> Result<TokenizedTurn, PromptError> {
        let special = self.parts.chat.add_special_tokens;
        let encoded =
            self.parts
                .model
                .tokenizer()
                .encode(self.parts.group, &self.text.rest, special)?;
        let new_tokens = u32::try_from(encoded.new_tokens).unwrap_or(u32::MAX);
        let blocks = match &self.earlier {
            Some(ConversationMatch { conversation, .. }) if self.text.known_pieces > 0 => {
                let known = conversation.tokens_of(self.text.known_pieces);
                let before = &conversation.blocks;
                // What is remembered has tokens, never text alone.
                let earlier = before.tokens().map_or(&[][..], |tokens| &tokens[..known]);
                let ids = [earlier, &encoded.tokens[..]].concat();
                PromptBlocks::of_continued_tokens(before, known, ids.into())
            }
            _ => PromptBlocks::of_tokens(scheme, encoded.tokens.as_slice().into()),
        };
        let blocks = Arc::new(blocks);
        if self.parts.is_continuable() {
            self.remember(&encoded, Arc::clone(&blocks));
        }
        Ok(TokenizedTurn { blocks, new_tokens })
    }

    fn remember(self, encoded: &EncodedText, blocks: Arc<PromptBlocks>) {
        let seeds = self.parts.seeds();
        let known = self.text.known_pieces;
        let empty = SharedText::new(seeds.text);
        let (text, mut token_ends) = match &self.earlier {
            Some(ConversationMatch { conversation, .. }) => (
                &conversation.text,
                conversation.token_ends[..known].to_vec(),
            ),
            None => (&empty, Vec::new()),
        };
        let tokens_before = token_ends.last().copied().unwrap_or(0);
        token_ends.extend(encoded.cuts.iter().map(|cut| tokens_before + cut.tokens));
        let mut start = 0;
        let piece = |cut: &TextCut| {
            Arc::from(&self.text.rest[std::mem::replace(&mut start, cut.bytes)..cut.bytes])
        };
        let conversation = Conversation {
            text: text.continued(known, encoded.cuts.iter().map(piece)),
            token_ends,
            chat: self
                .chat
                .unwrap_or_else(|| ParsedChat::empty(seeds.messages)),
            blocks,
            loop_record: self.text.loop_record.map(Arc::new),
        };
        let earlier = self.earlier.as_ref().map(|earlier| (earlier, known));
        let owner = self.parts.owner();
        self.parts.memory.insert(owner, conversation, earlier);
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;
    use crate::Artefacts;

    #[test]
    #[contract("S61")]
    fn a_chat_that_is_too_long_for_a_render_is_not_rendered_again() {
        let tokenizer = br#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0,"u":1},"unk_token":"u"}}"#;
        let artefacts = Artefacts {
            tokenizer_json: tokenizer,
            tokenizer_config: None,
            chat_template: Some("{% for m in messages %}{{ m.content + m.role }}{% endfor %}"),
        };
        let model = PromptModel::load(artefacts).expect("a small tokenizer");
        let memory = ConversationMemory::default();
        let rendered = |messages: usize| {
            let message = r#"{"role":"user","content":"a"}"#;
            let messages = format!("[{}]", vec![message; messages].join(","));
            let chat = ChatRequest {
                messages: &messages,
                tools: None,
                documents: None,
                chat_template: None,
                chat_template_kwargs: None,
                reasoning_effort: None,
                add_generation_prompt: true,
                continue_final_message: false,
                add_special_tokens: false,
            };
            let parts = TurnParts {
                model: &model,
                memory: &memory,
                group: SaltGroup::of(None),
                chat,
            };
            let rendered = parts.render_parsed(&None, 0, 0);
            rendered.map(|found| found.map(|(_, text)| text.rest.len()))
        };
        assert!(matches!(rendered(10), Ok(Some(50))));
        // `None` asks for a second one.
        let refused = rendered(200_000);
        assert!(
            matches!(
                refused,
                Err(PromptError::Unsupported {
                    is_too_long: true,
                    ..
                })
            ),
            "{refused:?}"
        );
    }
}
