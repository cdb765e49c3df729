//! Events as commands.

use std::{sync::Arc, time::Duration};

use prefix_view::{
    Effect, Offloading, PrefixEvent, PrefixHash, PrefixHolders, StorageTier, ViewSettings,
};
use redis::Pipeline;

use super::keys::{holders_key, tier_text, tiers_key};

/// Something to be written.
#[derive(Clone, Debug)]
pub(super) enum WriteOp {
    /// One pair of prefix and backend.
    Pair {
        prefix: PrefixHash,
        backend: Arc<str>,
        change: HoldingChange,
    },
    /// Everything of one backend goes.
    Forget(Arc<str>),
    /// Everything goes.
    Clear,
    /// Nothing follows.
    End,
}

/// What happens to a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldingChange {
    /// The backend has so many tokens, in this tier.
    Hold(u32, StorageTier),
    /// The same where the event does not say how many: what Redis knows stays, and so many are assumed where it knows
    /// nothing.
    HoldKnownOr(u32, StorageTier),
    /// What the backend has, if anything, is in this tier now.
    Move(StorageTier),
    /// The backend has nothing of it.
    Drop,
}

/// How a view is written down.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyWriter {
    offloading: Offloading,
    ttl: Duration,
    assumed_tokens: u32,
}

impl KeyWriter {
    pub(super) fn new(settings: &ViewSettings) -> Self {
        let ViewSettings {
            offloading,
            entry_ttl,
            ..
        } = *settings;
        Self {
            offloading,
            ttl: entry_ttl,
            assumed_tokens: settings.assumed_tokens(),
        }
    }

    /// Whether there is a second tier, and so a hash beside each sorted set.
    pub(super) fn has_tiers(self) -> bool {
        self.offloading != Offloading::Off
    }

    pub(super) fn op(self, backend: &Arc<str>, event: &PrefixEvent) -> WriteOp {
        let change = match (self.offloading.effect(event.kind), event.token_count) {
            (Effect::Drop, _) => HoldingChange::Drop,
            (Effect::Hold(tier), Some(tokens)) => HoldingChange::Hold(tokens, tier),
            (Effect::Hold(StorageTier::GpuHot), None) => {
                HoldingChange::HoldKnownOr(self.assumed_tokens, StorageTier::GpuHot)
            }
            (Effect::Hold(tier), None) => HoldingChange::Move(tier),
        };
        WriteOp::Pair {
            prefix: event.prefix,
            backend: Arc::clone(backend),
            change,
        }
    }

    /// The commands for one pair.
    pub(super) fn write_pair(
        self,
        pipeline: &mut Pipeline,
        prefix: &PrefixHash,
        backend: &str,
        change: HoldingChange,
    ) {
        let key = holders_key(prefix);
        let tier = match change {
            HoldingChange::Hold(tokens, tier) => {
                pipeline.cmd("ZADD").arg(&key).arg(tokens).arg(backend);
                tier
            }
            HoldingChange::HoldKnownOr(tokens, tier) => {
                pipeline
                    .cmd("ZADD")
                    .arg(&key)
                    .arg("NX")
                    .arg(tokens)
                    .arg(backend);
                tier
            }
            HoldingChange::Move(tier) => tier,
            HoldingChange::Drop => {
                pipeline.cmd("ZREM").arg(&key).arg(backend);
                if self.has_tiers() {
                    pipeline.cmd("HDEL").arg(tiers_key(prefix)).arg(backend);
                }
                return;
            }
        };
        expire(pipeline, &key, self.ttl);
        if self.has_tiers() {
            let tiers = tiers_key(prefix);
            pipeline
                .cmd("HSET")
                .arg(&tiers)
                .arg(backend)
                .arg(tier_text(tier));
            expire(pipeline, &tiers, self.ttl);
        }
    }

    /// The commands for what this process holds of a prefix, which end when that does. What Redis still knows stays: it
    /// may be of a count that was only assumed here, and what was said meanwhile waits to be written after this.
    pub(super) fn write_held(self, pipeline: &mut Pipeline, held: &PrefixHolders) {
        let (key, tiers) = (holders_key(&held.prefix), tiers_key(&held.prefix));
        for holder in &held.holders {
            pipeline
                .cmd("ZADD")
                .arg(&key)
                .arg("NX")
                .arg(holder.tokens)
                .arg(&*holder.backend);
            if self.has_tiers() {
                pipeline
                    .cmd("HSETNX")
                    .arg(&tiers)
                    .arg(&*holder.backend)
                    .arg(tier_text(holder.tier));
            }
        }
        expire(pipeline, &key, held.left);
        if self.has_tiers() {
            expire(pipeline, &tiers, held.left);
        }
    }
}

fn expire(pipeline: &mut Pipeline, key: &str, left: Duration) {
    pipeline.cmd("EXPIRE").arg(key).arg(left.as_secs().max(1));
}
