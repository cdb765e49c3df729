//! What the index answers.

use std::sync::Arc;

use kv_blocks::{Namespace, SequenceHash, Target, Tier};

/// What one update did, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateOutcome {
    /// Blocks stored or removed (also those stored before); 1 for a clear.
    pub applied: u32,
    /// Blocks not stored because their parent is unknown or belongs to another namespace.
    pub orphans: u32,
    /// Blocks without effect: removals of unknown ones, stores refused for lack of room or of a registration.
    pub ignored: u32,
}

/// Blocks per tier, each block counted once, in its best tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierBlocks {
    /// On the accelerator.
    pub device: u32,
    /// In host memory.
    pub host: u32,
    /// On disk.
    pub disk: u32,
    /// On shared storage.
    pub remote: u32,
    /// Unconfirmed: speculative or predicted.
    pub speculative: u32,
}

impl TierBlocks {
    /// All blocks.
    pub fn total(&self) -> u32 {
        self.device + self.host + self.disk + self.remote + self.speculative
    }
}

/// What one target holds of a prompt: its longest contiguous run of leading blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The target.
    pub target: Target,
    /// The run, by tier; of a target that is not trusted only what is predicted.
    pub blocks: TierBlocks,
    /// The run by the target's own announcements, by tier; for a trusted target the same as `blocks`.
    pub announced: TierBlocks,
    /// Blocks of `blocks` present in each tier, in the order of [`Tier::ALL`], a block in two tiers counting in both.
    /// Source: contract MC4.
    pub present: [u32; 4],
}

/// Totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Namespaces in use.
    pub namespaces: u64,
    /// Distinct blocks that somebody holds.
    pub distinct: u64,
    /// Pairs of block and target.
    pub memberships: u64,
    /// Speculative entries.
    pub speculative: u64,
    /// Predicted entries.
    pub predicted: u64,
    /// Blocks announced behind an unknown parent, ever.
    pub orphans: u64,
    /// Bytes in use, estimated.
    pub bytes: u64,
    /// Bytes allowed.
    pub budget_bytes: u64,
    /// Blocks let go or refused for lack of room, ever.
    pub shed: u64,
}

/// Content of one tier of one target, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetDigest {
    /// The target.
    pub target: Target,
    /// The tier.
    pub tier: Tier,
    /// Blocks in it.
    pub blocks: u64,
    /// Digest over (namespace, sequence hash) of its blocks, whatever their order: equal content, equal digest, on every
    /// machine.
    pub digest: u64,
}

/// One membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpRow {
    /// The block's namespace.
    pub namespace: Arc<Namespace>,
    /// Digest of the salt, 16 hex digits: the salt itself is a secret.
    pub salt_digest: Option<Arc<str>>,
    /// Who holds it.
    pub target: Target,
    /// Where.
    pub tier: Tier,
    /// Blocks in front of it.
    pub depth: u32,
    /// Its plain rolling hash.
    pub hash: SequenceHash,
    /// The block in front of it; `None` at depth 0.
    pub parent: Option<SequenceHash>,
}

/// How far a dump has come; the default is its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpCursor {
    /// The next run.
    pub(crate) run: u32,
    /// The next of its blocks.
    pub(crate) at: u32,
}
