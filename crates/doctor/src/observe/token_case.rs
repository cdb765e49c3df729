//! The engine's token ids of one text or chat beside our own.

use prompt::PromptModel;

use super::token_samples::ChatBody;

/// Result of the comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TokenComparison {
    /// Whether the engine answers `/tokenize`; `None`: no request, or no answer.
    pub(crate) has_route: Option<bool>,
    /// Texts without special tokens.
    pub(crate) texts: Vec<TokenCase>,
    /// Texts with the special tokens that a tokenizer adds.
    pub(crate) special: Vec<TokenCase>,
    /// Chats.
    pub(crate) chats: Vec<TokenCase>,
}

/// One text or chat.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenCase {
    /// Name of the case.
    pub(crate) name: &'static str,
    /// Whether it uses only features of every chat: messages of system, user and assistant.
    pub(crate) plain: bool,
    pub(crate) engine: EngineTokenization,
    /// Our ids, or the reason why there are none.
    pub(crate) own: Result<Vec<u32>, String>,
    /// If a chat's ids differ: the engine's and our text from there on, by our tokenizer.
    pub(crate) pieces: Option<(String, String)>,
}

/// The engine's answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum EngineTokenization {
    Ids(Vec<u32>),
    /// Only the number of ids.
    Count(usize),
    /// The engine takes no such request.
    Refused,
    /// No answer; the reason.
    Silent(String),
}

/// Longest piece of a text shown, in characters.
const LONGEST_PIECE: usize = 40;

impl TokenCase {
    pub(super) fn of_chat(
        chat: &ChatBody,
        engine: EngineTokenization,
        own: Result<Vec<u32>, String>,
        model: &PromptModel,
    ) -> Self {
        let pieces = match (&engine, &own) {
            (EngineTokenization::Ids(engine), Ok(own)) => first_difference(engine, own).map(|at| {
                let piece = |ids: &[u32]| {
                    let text = model.decode(&ids[at.min(ids.len())..]).unwrap_or_default();
                    text.chars().take(LONGEST_PIECE).collect::<String>()
                };
                (piece(engine), piece(own))
            }),
            _ => None,
        };
        Self {
            name: chat.name,
            plain: chat.plain,
            engine,
            own,
            pieces,
        }
    }
}

/// Returns the position of the first id that differs; a list that ends early differs there.
pub(crate) fn first_difference(one: &[u32], other: &[u32]) -> Option<usize> {
    let shared = one
        .iter()
        .zip(other)
        .take_while(|(one, other)| one == other)
        .count();
    (shared < one.len().max(other.len())).then_some(shared)
}
