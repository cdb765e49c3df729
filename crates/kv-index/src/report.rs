//! Results of the index.

use std::sync::Arc;

use kv_blocks::{Namespace, SequenceHash, Target, Tier};

/// Effect of one update, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateOutcome {
    /// Blocks stored or removed (also those stored before); 1 for a clear.
    pub applied: u32,
    /// Blocks not stored because their parent is unknown or belongs to another namespace.
    pub orphans: u32,
    /// Blocks without effect: removals of unknown ones, stores refused for lack of room or of a
    /// registration.
    pub ignored: u32,
    /// Stored blocks that the target held in another tier only.
    pub moved: u32,
}

impl UpdateOutcome {
    /// Returns the outcome of an update of `blocks` blocks, `applied` of which had an effect.
    pub(crate) fn applied(applied: u32, blocks: usize) -> Self {
        let all = count(blocks);
        let applied = applied.min(all);
        Self {
            applied,
            orphans: 0,
            ignored: all - applied,
            moved: 0,
        }
    }

    /// Returns the outcome of a store of `blocks` blocks without a usable parent.
    pub(crate) fn orphaned(blocks: usize) -> Self {
        Self {
            orphans: count(blocks),
            ..Self::default()
        }
    }
}

/// Returns a number of blocks in 32 bits.
pub(crate) fn count(blocks: usize) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
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
    /// Returns the number of all blocks.
    pub fn total(&self) -> u32 {
        self.device + self.host + self.disk + self.remote + self.speculative
    }
}

/// Longest contiguous run of a prompt's leading blocks that one target holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The target.
    pub target: Target,
    /// The run, by tier; for an untrusted target only the predicted blocks.
    pub blocks: TierBlocks,
    /// The run according to the target's own announcements, by tier; for a trusted target equal to
    /// `blocks`.
    pub announced: TierBlocks,
    /// Blocks of `blocks` present in each tier, in the order of [`Tier::ALL`]; a block in two tiers
    /// counts in both.
    /// Source: contract MC4.
    pub present: [u32; 4],
}

/// Totals of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Namespaces in use.
    pub namespaces: u64,
    /// Distinct blocks with a holder.
    pub distinct: u64,
    /// Pairs of block and target.
    pub memberships: u64,
    /// Speculative entries.
    pub speculative: u64,
    /// Predicted entries.
    pub predicted: u64,
    /// Blocks announced behind an unknown parent, since the start.
    pub orphans: u64,
    /// Bytes in use, estimated.
    pub bytes: u64,
    /// Bytes allowed.
    pub budget_bytes: u64,
    /// Blocks dropped or refused for lack of room, since the start.
    pub shed: u64,
}

/// Digest of the content of one tier of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetDigest {
    /// The target.
    pub target: Target,
    /// The tier.
    pub tier: Tier,
    /// Blocks in it.
    pub blocks: u64,
    /// Digest over (namespace, sequence hash) of its blocks, in any order: equal content gives an
    /// equal digest on every machine.
    pub digest: u64,
}

/// One confirmed membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpRow {
    /// The block's namespace.
    pub namespace: Arc<Namespace>,
    /// Digest of the salt, 16 hex digits: the salt itself is a secret.
    pub salt_digest: Option<Arc<str>>,
    /// The holder.
    pub target: Target,
    /// The tier.
    pub tier: Tier,
    /// Blocks in front of it.
    pub depth: u32,
    /// The block's plain rolling hash.
    pub hash: SequenceHash,
    /// The block in front of it; `None` at depth 0.
    pub parent: Option<SequenceHash>,
}

/// Position of a dump; the default is its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpCursor {
    /// The next run.
    pub(crate) run: u32,
    /// The next of its blocks.
    pub(crate) at: u32,
}
