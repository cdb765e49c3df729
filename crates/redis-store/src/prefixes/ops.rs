//! Prefix events as Redis commands.

use std::{sync::Arc, time::Duration};

use prefix_view::{
    Effect, Offloading, PrefixEvent, PrefixHash, PrefixHolders, StorageTier, ViewSettings,
};
use redis::Pipeline;

use super::keys::{holders_key, tier_text, tiers_key};

/// A queued write.
#[derive(Clone, Debug)]
pub(super) enum WriteOp {
    /// A change of one pair of prefix and backend.
    Pair {
        prefix: PrefixHash,
        backend: Arc<str>,
        change: HoldingChange,
    },
    /// Removes every entry of one backend.
    Forget(Arc<str>),
    /// Removes every entry.
    Clear,
    /// Ends the writer.
    End,
}

/// Change of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldingChange {
    /// The backend has this number of tokens, in this tier.
    Hold(u32, StorageTier),
    /// The backend holds the prefix in this tier, and the event has no count: the number in Redis
    /// stays; without one, this number is assumed.
    HoldKnownOr(u32, StorageTier),
    /// The entry of the backend, if any, is in this tier now.
    Move(StorageTier),
    /// The backend does not hold the prefix.
    Drop,
}

/// Encoder of the view's writes.
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

    /// Returns whether there is a second tier, and so a hash beside each sorted set.
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

    /// Adds the commands for one pair.
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

    /// Adds the commands for this process's holders of a prefix, with the remaining lifetime as
    /// expiry. Existing counts in Redis stay: the count here may be only assumed, and later events
    /// are queued behind this write.
    pub(super) fn write_entry(self, pipeline: &mut Pipeline, entry: &PrefixHolders) {
        let (key, tiers) = (holders_key(&entry.prefix), tiers_key(&entry.prefix));
        for holder in &entry.holders {
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
        expire(pipeline, &key, entry.left);
        if self.has_tiers() {
            expire(pipeline, &tiers, entry.left);
        }
    }
}

fn expire(pipeline: &mut Pipeline, key: &str, left: Duration) {
    pipeline.cmd("EXPIRE").arg(key).arg(left.as_secs().max(1));
}
