//! A query to an engine for the tokens of a prompt.

use std::sync::Arc;

use bytes::Bytes;
use proxy::JsonReply;
use serde::Deserialize;

use crate::{
    render_reply,
    token_cache::{PromptTokens, QueryDigest},
};

/// What an engine is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueryKind {
    /// The tokens of a text, or of a chat of text.
    Tokenize,
    /// The tokens of a chat with images, audio or videos, and the hashes of these.
    Render,
}

/// A query as sent.
#[derive(Debug)]
pub(crate) struct EngineQuery {
    pub(crate) kind: QueryKind,
    pub(crate) body: Bytes,
    pub(crate) digest: QueryDigest,
}

/// Bytes of a token list per byte of the query: a token has at least one byte, and its id at most
/// seven with a comma.
const ANSWER_FACTOR: usize = 8;
/// Bytes of an answer that do not depend on the query.
const ANSWER_SLACK: usize = 4 << 10;

impl QueryKind {
    /// Returns the path of the query.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Tokenize => "/tokenize",
            Self::Render => "/v1/chat/completions/render",
        }
    }

    /// Returns the most bytes of an answer to a query of this many bytes.
    pub(crate) fn longest_answer(self, query: usize) -> usize {
        match self {
            Self::Tokenize => query * ANSWER_FACTOR + ANSWER_SLACK,
            Self::Render => render_reply::LONGEST,
        }
    }

    /// Returns what begins the part of an answer that is not read.
    pub(crate) fn end_mark(self) -> Option<&'static [u8]> {
        match self {
            Self::Tokenize => None,
            Self::Render => Some(render_reply::TENSORS),
        }
    }

    /// Reads an answer; `None` if its form is another.
    pub(crate) fn read(self, answer: &JsonReply) -> Option<PromptTokens> {
        match self {
            Self::Tokenize => {
                let reply: EngineTokenizeReply = serde_json::from_slice(&answer.body).ok()?;
                Some(PromptTokens::from(reply.tokens))
            }
            Self::Render if answer.is_cut => render_reply::read_cut(&answer.body),
            Self::Render => render_reply::read(&answer.body),
        }
    }
}

#[derive(Deserialize)]
struct EngineTokenizeReply {
    tokens: Arc<[u32]>,
}
