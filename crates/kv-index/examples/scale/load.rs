//! Content as a fleet has it.
//!
//! Conversations of equal depth. The first tenth of each is one of 64 system prompts; the rest is its own. Four targets,
//! drawn by chance, hold a conversation: two of them whole, one three quarters of it, one a half. So a block of a
//! conversation has 2 to 4 holders, and a block of a system prompt most targets. Events name blocks by their rolling
//! hashes, one event for each holder of a conversation.

use std::{ops::Range, sync::Arc};

use kv_blocks::{
    BlockSize, DpRank, HashScheme, Namespace, PromptIdentity, SequenceHash, Target, Tier, WorkerId,
};
use kv_index::{IndexSettings, KvIndex};

use super::random::{SplitMix64, mix};

const SYSTEM_PROMPTS: u64 = 64;
/// Of a conversation; the rest is its own.
const SYSTEM_SHARE: u32 = 10;
const HOLDERS: usize = 4;
/// Conversations stored between two looks at the memory.
const STRIDE: u64 = 64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct FleetShape {
    pub(crate) targets: u32,
    /// Blocks of a conversation.
    pub(crate) depth: u32,
}

#[derive(Debug)]
pub(crate) struct IndexLoad {
    pub(crate) index: KvIndex,
    pub(crate) shape: FleetShape,
    pub(crate) conversations: u64,
    pub(crate) namespace: Namespace,
    system_prompts: Vec<Vec<u32>>,
    /// By target and system prompt: whether it was announced.
    announced: Vec<bool>,
}

/// What a lookup asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum QueryKind {
    /// A conversation that somebody holds whole.
    Whole,
    /// One that leaves a known conversation at some block.
    Diverging,
    /// A new one behind a system prompt.
    SystemPrompt,
}

/// A prompt to look up.
#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) chain: Vec<SequenceHash>,
    /// Blocks of it that the best holder has.
    pub(crate) best: u32,
}

impl IndexLoad {
    pub(crate) fn new(shape: FleetShape, memory_budget: u64) -> Self {
        let index = KvIndex::new(IndexSettings {
            memory_budget,
            ..IndexSettings::default()
        });
        for number in 0..shape.targets as usize {
            index.register(target(number), Arc::from("m"));
        }
        let system_prompts: Vec<_> = (0..SYSTEM_PROMPTS)
            .map(|number| tokens(u64::MAX - number, 0..shape.depth / SYSTEM_SHARE))
            .collect();
        let announced = vec![false; system_prompts.len() * shape.targets as usize];
        Self {
            index,
            shape,
            conversations: 0,
            namespace: namespace(),
            system_prompts,
            announced,
        }
    }

    /// Stores conversations until there are so many memberships; returns false as soon as `room` says that there is none.
    pub(crate) fn grow(&mut self, memberships: u64, room: impl Fn() -> bool) -> bool {
        while self.index.stats().memberships < memberships {
            for _ in 0..STRIDE {
                self.store();
            }
            if self.index.stats().shed > 0 || !room() {
                return false;
            }
        }
        true
    }

    fn store(&mut self) {
        let number = self.conversations;
        self.conversations += 1;
        let conversation = self.tokens(number);
        let hashes = chain(&conversation);
        let mut dice = SplitMix64::new(number);
        let mut holders: Vec<usize> = Vec::with_capacity(HOLDERS);
        while holders.len() < HOLDERS.min(self.shape.targets as usize) {
            let holder = dice.below(self.shape.targets as usize);
            if !holders.contains(&holder) {
                holders.push(holder);
            }
        }
        let (system, depth) = (self.system_prompt(number), conversation.len());
        for (holder, length) in holders
            .into_iter()
            .zip([depth, depth, depth * 3 / 4, depth / 2])
        {
            let known = &mut self.announced[self.system_prompts.len() * holder + system];
            // A target that has the system prompt announces what comes behind.
            let from = if *known {
                self.system_prompts[system].len()
            } else {
                0
            };
            *known = true;
            let parent = from.checked_sub(1).map(|before| hashes[before]);
            self.index.store_hashes(
                target(holder),
                &self.namespace,
                parent,
                &hashes[from..length],
                Tier::Device,
            );
        }
    }

    /// Number of the system prompt that a conversation begins with.
    fn system_prompt(&self, conversation: u64) -> usize {
        usize::try_from(conversation).unwrap_or(0) % self.system_prompts.len()
    }

    fn tokens(&self, conversation: u64) -> Vec<u32> {
        let system = &self.system_prompts[self.system_prompt(conversation)];
        let own = self.shape.depth / SYSTEM_SHARE..self.shape.depth;
        system
            .iter()
            .copied()
            .chain(tokens(conversation, own))
            .collect()
    }

    /// The query with this number, of this kind.
    pub(crate) fn query(&self, number: u64, kind: QueryKind) -> Query {
        let mut dice = SplitMix64::new(!number);
        let known = dice.roll() % self.conversations;
        let mut query_tokens = self.tokens(known);
        let system = self.system_prompts[self.system_prompt(known)].len();
        let best = match kind {
            QueryKind::Whole => query_tokens.len(),
            QueryKind::Diverging => dice.within(system, query_tokens.len() - 1),
            QueryKind::SystemPrompt => system,
        };
        let others = tokens(u64::MAX / 2 - number, 0..self.shape.depth);
        query_tokens[best..].copy_from_slice(&others[best..]);
        Query {
            chain: chain(&query_tokens),
            best: u32::try_from(best).expect("short prompts"),
        }
    }
}

fn target(number: usize) -> Target {
    Target {
        worker: WorkerId(u32::try_from(number).expect("few targets")),
        rank: DpRank(0),
    }
}

/// One token a block: the index sees only hashes.
fn block_size() -> BlockSize {
    BlockSize::new(1).expect("a valid size")
}

fn namespace() -> Namespace {
    Namespace {
        model: Arc::from("m"),
        lora: None,
        salt: None,
        block_size: block_size(),
        identity: PromptIdentity::Tokens,
    }
}

fn chain(tokens: &[u32]) -> Vec<SequenceHash> {
    HashScheme::default().chain(None, tokens, block_size())
}

fn tokens(text: u64, range: Range<u32>) -> Vec<u32> {
    let token = |at| u32::try_from(mix(mix(text) ^ u64::from(at)) >> 32).expect("half of it");
    range.map(token).collect()
}
