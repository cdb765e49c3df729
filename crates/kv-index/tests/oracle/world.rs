//! The content of a trial: prompts, namespaces, targets.

use std::{collections::HashMap, ops::Range, sync::Arc};

use kv_blocks::{
    BlockSize, DpRank, HashScheme, Namespace, PromptIdentity, SequenceHash, Target, WorkerId,
};

use super::random::SplitMix64;

/// A block with everything before it, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeNo(pub(crate) usize);

/// A namespace by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NamespaceNo(pub(crate) usize);

/// A target by number; at most [`MAX_TARGETS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TargetNo(pub(crate) usize);

/// The truth has a bit for each.
pub(crate) const MAX_TARGETS: usize = 128;

const SIZES: [u64; 4] = [1, 2, 4, 16];
const MODELS: [&str; 2] = ["m", "other"];

impl TargetNo {
    /// Returns the target: each worker has two ranks.
    pub(crate) fn target(self) -> Target {
        let number = u32::try_from(self.0).expect("few targets");
        Target {
            worker: WorkerId(number / 2),
            rank: DpRank(number % 2),
        }
    }

    pub(crate) fn bit(self) -> u128 {
        1 << self.0
    }
}

#[derive(Debug)]
pub(crate) struct OracleNode {
    pub(crate) parent: Option<NodeNo>,
    pub(crate) depth: u32,
    /// The tokens of this block alone.
    pub(crate) tokens: Vec<u32>,
    pub(crate) hash: SequenceHash,
}

#[derive(Debug)]
pub(crate) struct OracleNamespace {
    pub(crate) namespace: Namespace,
    /// Number of its model.
    pub(crate) model: usize,
    /// Its prompts: those of its block size.
    prompts: Range<usize>,
}

/// The size of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// At most [`MAX_TARGETS`].
    pub(crate) targets: usize,
    pub(crate) spaces: usize,
    /// Of each block size.
    pub(crate) prompts: usize,
    /// Blocks of a prompt.
    pub(crate) blocks: usize,
}

impl Extent {
    /// Draws a size that is big in some dimensions and small in others.
    pub(crate) fn generate(dice: &mut SplitMix64) -> Self {
        let most = |dice: &mut SplitMix64, most: &[usize]| {
            let most = *dice.pick(most);
            dice.within(1, most)
        };
        Self {
            targets: most(dice, &[3, 12, 70]),
            spaces: most(dice, &[2, 8]),
            prompts: most(dice, &[6, 20, 60]),
            blocks: most(dice, &[8, 40, 200]),
        }
    }
}

#[derive(Debug)]
pub(crate) struct OracleWorld {
    pub(crate) nodes: Vec<OracleNode>,
    pub(crate) spaces: Vec<OracleNamespace>,
    pub(crate) targets: usize,
    /// Prompts of one block size are consecutive.
    prompts: Vec<Vec<NodeNo>>,
}

impl OracleWorld {
    pub(crate) fn new(extent: Extent, dice: &mut SplitMix64) -> Self {
        let mut world = Self {
            nodes: Vec::new(),
            spaces: Vec::new(),
            targets: extent.targets.min(MAX_TARGETS),
            prompts: Vec::new(),
        };
        // The few tokens of a small alphabet repeat within a prompt, and prompts share beginnings
        // by chance.
        let alphabet = *dice.pick(&[2, 50, 1 << 31]);
        // One size: blocks of another size than the target's own are chunks, which are cut into its
        // own blocks (`suite/chunk_order.rs`), and this oracle knows whole blocks only.
        let sizes = [*dice.pick(&SIZES)];
        let mut known = HashMap::new();
        let mut prompts: HashMap<u64, Range<usize>> = HashMap::new();
        for size in sizes {
            prompts.entry(size).or_insert_with(|| {
                let first = world.prompts.len();
                for _ in 0..extent.prompts {
                    world.add_prompt(size, first, (alphabet, extent.blocks), &mut known, dice);
                }
                first..world.prompts.len()
            });
        }
        let mut prompts: Vec<_> = prompts.into_iter().collect();
        prompts.sort_unstable_by_key(|(size, _)| *size);
        // At most one of each: a duplicate namespace would have two truths.
        for number in 0..extent.spaces {
            let (size, range) = prompts[number % prompts.len()].clone();
            let label = number / prompts.len();
            let namespace = Namespace {
                model: Arc::from(MODELS[usize::from(label % 4 == 3)]),
                lora: (label / 2 % 2 == 1).then(|| Arc::from(format!("adapter-{}", label / 4))),
                salt: (label % 2 == 1 || label >= 4).then(|| Arc::from(format!("salt-{label}"))),
                block_size: BlockSize::new(size).unwrap(),
                identity: if number > 0 && number + 1 == extent.spaces {
                    PromptIdentity::TextPrefix
                } else {
                    PromptIdentity::Tokens
                },
            };
            world.spaces.push(OracleNamespace {
                model: usize::from(label % 4 == 3),
                namespace,
                prompts: range,
            });
        }
        world
    }

    /// Adds a prompt that diverges from an earlier one at a random block, or is new from the first
    /// block.
    fn add_prompt(
        &mut self,
        size: u64,
        first: usize,
        (alphabet, blocks): (usize, usize),
        known: &mut HashMap<(u64, SequenceHash), NodeNo>,
        dice: &mut SplitMix64,
    ) {
        let mut prompt = Vec::new();
        if self.prompts.len() > first && dice.chance(75) {
            let other = &self.prompts[dice.within(first, self.prompts.len() - 1)];
            prompt.extend_from_slice(&other[..dice.within(1, other.len())]);
        }
        let length = dice.within(1, blocks).max(prompt.len());
        while prompt.len() < length {
            let parent: Option<NodeNo> = prompt.last().copied();
            let tokens: Vec<u32> = (0..size)
                .map(|_| u32::try_from(dice.below(alphabet)).expect("tokens have 32 bits"))
                .collect();
            let hash = HashScheme::default()
                .extend(parent.map(|parent| self.nodes[parent.0].hash), &tokens);
            prompt.push(*known.entry((size, hash)).or_insert_with(|| {
                let depth = u32::try_from(prompt.len()).expect("short prompts");
                self.nodes.push(OracleNode {
                    parent,
                    depth,
                    tokens,
                    hash,
                });
                NodeNo(self.nodes.len() - 1)
            }));
        }
        self.prompts.push(prompt);
    }

    pub(crate) fn model(&self, number: usize) -> Arc<str> {
        Arc::from(MODELS[number % MODELS.len()])
    }

    pub(crate) fn namespace(&self, space: NamespaceNo) -> &Namespace {
        &self.spaces[space.0].namespace
    }

    /// Returns a namespace for any number.
    pub(crate) fn space(&self, number: usize) -> NamespaceNo {
        NamespaceNo(number % self.spaces.len())
    }

    /// Returns a target for any number.
    pub(crate) fn target(&self, number: usize) -> TargetNo {
        TargetNo(number % self.targets)
    }

    pub(crate) fn targets(&self) -> impl Iterator<Item = TargetNo> + use<> {
        (0..self.targets).map(TargetNo)
    }

    pub(crate) fn spaces(&self) -> impl Iterator<Item = NamespaceNo> + use<> {
        (0..self.spaces.len()).map(NamespaceNo)
    }

    /// Returns a prompt of a namespace for any number; never empty.
    pub(crate) fn prompt(&self, space: NamespaceNo, number: usize) -> &[NodeNo] {
        let range = self.spaces[space.0].prompts.clone();
        &self.prompts[range.start + number % range.len()]
    }

    /// Number of prompts of a namespace.
    pub(crate) fn prompts(&self, space: NamespaceNo) -> usize {
        self.spaces[space.0].prompts.len()
    }

    pub(crate) fn hashes(&self, nodes: &[NodeNo]) -> Vec<SequenceHash> {
        nodes.iter().map(|node| self.nodes[node.0].hash).collect()
    }

    pub(crate) fn tokens(&self, nodes: &[NodeNo]) -> Vec<u32> {
        nodes
            .iter()
            .flat_map(|node| self.nodes[node.0].tokens.iter().copied())
            .collect()
    }

    /// Number of a block within a namespace, below [`World::cells`].
    pub(crate) fn cell(&self, space: NamespaceNo, node: NodeNo) -> usize {
        space.0 * self.nodes.len() + node.0
    }

    pub(crate) fn cells(&self) -> usize {
        self.spaces.len() * self.nodes.len()
    }
}
