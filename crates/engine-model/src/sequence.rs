//! One request inside the engine.

use std::{ops::Range, sync::Arc};

use kv_blocks::{BlockSize, EngineHash, HashScheme, MediaHash, Moment, PromptMedia, SequenceHash};

use crate::{
    BlockMedia,
    pool::{BlockContent, BlockId},
    reply::ReplyStream,
    request::{FetchedPrefix, Finish, GenerationRequest, NamedRequest, RequestId},
};

/// The engine's own naming of blocks. It differs from the router's scheme on purpose: nothing may
/// depend on the two being equal.
const NAMES: HashScheme = HashScheme::Xxh3 {
    seed: 0x656e_6769_6e65,
};

#[derive(Debug)]
pub(crate) struct Sequence {
    terms: RequestTerms,
    pub(crate) prompt_tokens: u32,
    pub(crate) lora: Option<Arc<str>>,
    pub(crate) salt: Option<Arc<str>>,
    media: PromptMedia,
    text: SequenceText,
    /// Tokens with computed KV.
    pub(crate) computed: u32,
    pub(crate) blocks: Vec<BlockId>,
    /// Named leading blocks.
    pub(crate) named_blocks: usize,
    pub(crate) emitted: u32,
    /// Prompt tokens found in the cache; set at the first scheduling.
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) ready_at: Moment,
    /// Whether its prompt's KV came from another engine; valid once, so that a preempted prompt is
    /// computed.
    pub(crate) transferred: bool,
    /// Leading tokens that another engine sent until it is ready; valid once, like `transferred`.
    pub(crate) fetched_tokens: u32,
}

/// The parts of a request that its sequence never changes.
#[derive(Debug)]
struct RequestTerms {
    id: RequestId,
    output_tokens: u32,
    finish: Finish,
    /// Lower goes first, if the engine schedules by priority.
    priority: i64,
}

/// The text of a sequence, as far as it is known.
#[derive(Debug)]
enum SequenceText {
    /// Every token.
    Tokens {
        /// Prompt and generated tokens.
        tokens: Vec<u32>,
        reply: ReplyStream,
        /// Tokens before `reply`.
        script: Option<Arc<[u32]>>,
        /// Names of the whole blocks of `tokens`, computed on demand.
        names: Vec<EngineHash>,
    },
    /// The names of the prompt's blocks.
    Named(Arc<[EngineHash]>),
}

impl Sequence {
    pub(crate) fn with_tokens(
        request: GenerationRequest,
        ready_at: Moment,
        seed: u64,
        alphabet: Arc<[u32]>,
    ) -> Self {
        let GenerationRequest {
            id,
            prompt,
            media,
            output_tokens,
            finish,
            script,
            lora,
            salt,
            transferred,
            fetch,
            priority,
        } = request;
        // `submit` rejects a prompt that does not fit u32.
        let prompt_tokens = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let reply = ReplyStream::new(seed, &prompt, alphabet);
        let text = SequenceText::Tokens {
            tokens: prompt.to_vec(),
            reply,
            script,
            names: Vec::new(),
        };
        let terms = RequestTerms {
            id,
            output_tokens,
            finish,
            priority,
        };
        Self {
            lora,
            salt,
            media,
            transferred,
            ..Self::new(terms, prompt_tokens, text, ready_at).fetching(fetch)
        }
    }

    pub(crate) fn named(request: NamedRequest, ready_at: Moment) -> Self {
        let NamedRequest {
            id,
            prompt_tokens,
            blocks,
            output_tokens,
            fetch,
            priority,
        } = request;
        let terms = RequestTerms {
            id,
            output_tokens,
            finish: Finish::Length,
            priority,
        };
        let text = SequenceText::Named(blocks);
        Self::new(terms, prompt_tokens, text, ready_at).fetching(fetch)
    }

    fn new(terms: RequestTerms, prompt_tokens: u32, text: SequenceText, ready_at: Moment) -> Self {
        Self {
            terms,
            prompt_tokens,
            lora: None,
            salt: None,
            media: PromptMedia::default(),
            text,
            computed: 0,
            blocks: Vec::new(),
            named_blocks: 0,
            emitted: 0,
            cached_tokens: None,
            ready_at,
            transferred: false,
            fetched_tokens: 0,
        }
    }

    /// Returns the sequence, ready when its blocks have come from another engine.
    fn fetching(self, fetch: Option<FetchedPrefix>) -> Self {
        let Some(FetchedPrefix { tokens, time }) = fetch else {
            return self;
        };
        Self {
            ready_at: self.ready_at + time,
            fetched_tokens: tokens,
            ..self
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.terms.id
    }

    pub(crate) fn priority(&self) -> i64 {
        self.terms.priority
    }

    /// Returns the total tokens, generated ones included.
    pub(crate) fn len(&self) -> u32 {
        // `submit` rejects a sequence whose final length exceeds u32.
        self.prompt_tokens + self.emitted
    }

    /// Returns the total tokens at its end.
    pub(crate) fn longest(&self) -> u32 {
        self.prompt_tokens + self.terms.output_tokens
    }

    /// Returns whether it generates one token per step.
    pub(crate) fn is_decoding(&self) -> bool {
        self.emitted > 0 && self.len() - self.computed == 1
    }

    /// Returns the number of blocks that can have a name once the first `end` tokens are computed.
    pub(crate) fn nameable(&self, end: u32, size: BlockSize) -> usize {
        let whole = size.whole_blocks(end) as usize;
        match &self.text {
            SequenceText::Tokens { .. } => whole,
            SequenceText::Named(names) if end >= self.prompt_tokens => names.len(),
            SequenceText::Named(names) => whole.min(names.len()),
        }
    }

    /// Returns the names of the first `count` blocks, which must be whole; fewer if fewer have one.
    pub(crate) fn names(&mut self, count: usize, size: BlockSize) -> &[EngineHash] {
        let root = match &self.text {
            SequenceText::Tokens { names, .. } if names.is_empty() => self.root(),
            _ => None,
        };
        self.extend_names(root, count, size);
        match &self.text {
            SequenceText::Tokens { names, .. } => &names[..count],
            SequenceText::Named(names) => &names[..count.min(names.len())],
        }
    }

    /// Names blocks up to `count`; `root` is the parent of the first block.
    fn extend_names(&mut self, root: Option<SequenceHash>, count: usize, size: BlockSize) {
        let SequenceText::Tokens { tokens, names, .. } = &mut self.text else {
            return;
        };
        while names.len() < count {
            let index = names.len();
            let parent = names
                .last()
                .map_or(root, |parent| Some(SequenceHash(parent.0)));
            let block = &tokens[index * size.len()..(index + 1) * size.len()];
            let items = self.media.in_block(index, size);
            let media = MediaHash::of(items.map(|(identifier, place)| (&**identifier, place)));
            names.push(EngineHash(NAMES.extend_with(parent, block, media).0));
        }
    }

    /// Returns the name of the block at `index`, which [`Sequence::names`] must have computed.
    pub(crate) fn name(&self, index: usize) -> EngineHash {
        match &self.text {
            SequenceText::Tokens { names, .. } => names[index],
            SequenceText::Named(names) => names[index],
        }
    }

    /// Returns the tokens of these blocks; empty if they are unknown.
    pub(crate) fn block_tokens(&self, blocks: Range<usize>, size: BlockSize) -> Vec<u32> {
        match &self.text {
            SequenceText::Tokens { tokens, .. } => {
                tokens[blocks.start * size.len()..blocks.end * size.len()].to_vec()
            }
            SequenceText::Named(_) => Vec::new(),
        }
    }

    /// Returns the multimodal items of these blocks; empty if none has any.
    pub(crate) fn media(&self, blocks: Range<usize>, size: BlockSize) -> Vec<BlockMedia> {
        let has_any = |block| self.media.in_block(block, size).next().is_some();
        if self.media.items().is_empty() || !blocks.clone().any(has_any) {
            return Vec::new();
        }
        blocks.map(|block| self.block_media(block, size)).collect()
    }

    /// Returns the multimodal items of the block at `index`.
    fn block_media(&self, index: usize, size: BlockSize) -> BlockMedia {
        self.media
            .in_block(index, size)
            .map(|(identifier, place)| (Arc::clone(identifier), place))
            .collect()
    }

    /// Returns the content of the block at `index`. Its name must be known.
    pub(crate) fn content(
        &self,
        index: usize,
        size: BlockSize,
        tokens: KeepTokens,
    ) -> BlockContent {
        BlockContent {
            hash: self.name(index),
            parent: index.checked_sub(1).map(|before| self.name(before)),
            tokens: match tokens {
                KeepTokens::Yes => self.block_tokens(index..index + 1, size).into(),
                KeepTokens::No => Box::default(),
            },
            lora: self.lora.clone(),
            salt: if index == 0 { self.salt.clone() } else { None },
            media: self.block_media(index, size),
        }
    }

    /// Generates the next token.
    pub(crate) fn generate(&mut self) -> (u32, Option<Finish>) {
        let token = match &mut self.text {
            SequenceText::Tokens {
                tokens,
                reply,
                script,
                ..
            } => {
                let index = self.emitted;
                let scripted = script
                    .as_ref()
                    .and_then(|script| script.get(index as usize))
                    .copied();
                let token = scripted.unwrap_or_else(|| reply.token(index));
                tokens.push(token);
                token
            }
            SequenceText::Named(_) => 0,
        };
        self.emitted += 1;
        (
            token,
            (self.emitted >= self.terms.output_tokens).then_some(self.terms.finish),
        )
    }

    /// Returns a pseudo-parent that differs by adapter and salt; `None` without either.
    fn root(&self) -> Option<SequenceHash> {
        let mut root = None;
        // Different lead tokens, so that a salt never equals an adapter of the same spelling.
        for (lead, key) in [(1, &self.lora), (2, &self.salt)] {
            if let Some(key) = key {
                let named_tokens: Vec<u32> = std::iter::once(lead)
                    .chain(key.bytes().map(u32::from))
                    .collect();
                root = Some(NAMES.extend(root, &named_tokens));
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
