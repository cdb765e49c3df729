//! One request inside the engine.

use std::sync::Arc;

use kv_blocks::{BlockSize, EngineHash, HashScheme, Moment, SequenceHash};

use crate::{
    pool::{BlockContent, BlockId},
    reply::ReplyStream,
    request::{Finish, Request, RequestId},
};

/// The engine's own way of naming blocks. Deliberately not the router's scheme: nothing may depend on the two agreeing.
const NAMES: HashScheme = HashScheme::Xxh3 { seed: 0x656e_6769_6e65 };

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) request: Request,
    reply: ReplyStream,
    /// Prompt and what was generated.
    pub(crate) tokens: Vec<u32>,
    /// Tokens whose KV is there.
    pub(crate) computed: u32,
    pub(crate) blocks: Vec<BlockId>,
    /// Leading blocks that have their name.
    pub(crate) named_blocks: usize,
    pub(crate) emitted: u32,
    /// Prompt tokens found in the cache; set when first scheduled.
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) ready_at: Moment,
    /// Names of the whole blocks of `tokens`, as far as anybody asked.
    names: Vec<EngineHash>,
}

impl Sequence {
    pub(crate) fn new(request: Request, ready_at: Moment, seed: u64, alphabet: Arc<[u32]>) -> Self {
        Self {
            reply: ReplyStream::new(seed, &request.prompt, alphabet),
            tokens: request.prompt.to_vec(),
            request,
            computed: 0,
            blocks: Vec::new(),
            named_blocks: 0,
            emitted: 0,
            cached_tokens: None,
            ready_at,
            names: Vec::new(),
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.request.id
    }

    /// Tokens in all, generated ones included.
    pub(crate) fn len(&self) -> u32 {
        // `submit` refuses what does not fit the pool, which is counted in u32 blocks of at most 2^16 tokens; the
        // prompt's length was checked there.
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    /// True while it makes one token a step.
    pub(crate) fn is_decoding(&self) -> bool {
        self.emitted > 0 && self.len() - self.computed == 1
    }

    /// Names of the first `count` blocks, which must be whole.
    pub(crate) fn names(&mut self, count: usize, size: BlockSize) -> &[EngineHash] {
        while self.names.len() < count {
            let place = self.names.len();
            let parent = match self.names.last() {
                Some(parent) => Some(SequenceHash(parent.0)),
                None => self.root(),
            };
            let block = &self.tokens[place * size.len()..(place + 1) * size.len()];
            self.names.push(EngineHash(NAMES.extend(parent, block).0));
        }
        &self.names[..count]
    }

    /// What the block at `place` holds. Its name must be known.
    pub(crate) fn content(&self, place: usize, size: BlockSize, tokens: KeepTokens) -> BlockContent {
        let block = &self.tokens[place * size.len()..(place + 1) * size.len()];
        BlockContent {
            hash: self.names[place],
            parent: place.checked_sub(1).map(|before| self.names[before]),
            tokens: match tokens {
                KeepTokens::Yes => block.into(),
                KeepTokens::No => Box::default(),
            },
            lora: self.request.lora.clone(),
            salt: if place == 0 { self.request.salt.clone() } else { None },
        }
    }

    /// Generates the next token.
    pub(crate) fn generate(&mut self) -> (u32, Option<Finish>) {
        let token = self.reply.token(self.emitted);
        self.tokens.push(token);
        self.emitted += 1;
        (token, (self.emitted >= self.request.output_tokens).then_some(self.request.finish))
    }

    /// Stands for a parent that differs wherever adapter or salt differ; `None` without either.
    fn root(&self) -> Option<SequenceHash> {
        let mut root = None;
        // Different lead tokens, so that a salt never passes for an adapter of the same spelling.
        for (lead, key) in [(1, &self.request.lora), (2, &self.request.salt)] {
            if let Some(key) = key {
                let spelled: Vec<u32> = std::iter::once(lead).chain(key.bytes().map(u32::from)).collect();
                root = Some(NAMES.extend(root, &spelled));
            }
        }
        root
    }
}

/// Whether block contents carry their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepTokens {
    Yes,
    No,
}
