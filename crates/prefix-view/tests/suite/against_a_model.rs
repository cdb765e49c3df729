//! The view against a simple model: a map of maps, scanned completely for every query.

use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc, time::Duration};

use contract_id::contract;
use kv_blocks::Moment;
use prefix_view::{
    EventKind, MemoryPrefixIndex, Offloading, PrefixEvent, PrefixIndex, StorageTier, ViewSettings,
};
use proptest::{collection::vec, option, prelude::*};

use crate::{event, prefix};

const TTL_MS: u64 = 200;
/// Fewer than the prefixes of this test, and a tenth is more than one.
const MAX_PREFIXES: usize = 20;
const BACKENDS: [&str; 3] = ["w1", "w2", "w3"];

#[derive(Clone, Debug)]
enum ViewStep {
    Record { backend: usize, event: PrefixEvent },
    Query { number: u64 },
    Wait { ms: u64 },
    CleanUp,
    RemoveBackend { backend: usize },
    Clear,
}

fn step() -> impl Strategy<Value = ViewStep> {
    let number = 0..40_u64;
    let kind = prop_oneof![
        5 => Just(EventKind::Created),
        1 => Just(EventKind::Evicted),
        1 => Just(EventKind::Offloaded),
        1 => Just(EventKind::Reloaded),
        1 => Just(EventKind::Purged),
    ];
    prop_oneof![
        40 => (0..3_usize, kind, number.clone(), option::of(0..4_u32))
            .prop_map(|(backend, kind, number, tokens)| ViewStep::Record { backend, event: event(kind, number, tokens) }),
        30 => number.prop_map(|number| ViewStep::Query { number }),
        1 => (1..TTL_MS).prop_map(|ms| ViewStep::Wait { ms }),
        2 => Just(ViewStep::CleanUp),
        1 => (0..3_usize).prop_map(|backend| ViewStep::RemoveBackend { backend }),
        1 => Just(ViewStep::Clear),
    ]
}

fn offloading() -> impl Strategy<Value = Offloading> {
    prop_oneof![
        Just(Offloading::Off),
        any::<bool>().prop_map(|treat_eviction_as_offload| Offloading::On {
            treat_eviction_as_offload
        }),
    ]
}

#[derive(Debug, Default)]
struct KnownPrefix {
    used: u64,
    /// Backend -> tokens, tier, when recorded.
    holders: BTreeMap<usize, (u32, StorageTier, u64)>,
}

/// Moments are milliseconds, and no two steps share one.
#[derive(Debug, Default)]
struct ViewModel {
    prefixes: BTreeMap<String, KnownPrefix>,
    evicted: u64,
    expired: u64,
}

impl ViewModel {
    fn expire(&mut self, only: Option<&str>, now: u64) {
        for (_, known) in self
            .prefixes
            .iter_mut()
            .filter(|(name, _)| only.is_none_or(|only| **name == only))
        {
            let before = known.holders.len();
            known
                .holders
                .retain(|_, (.., recorded)| *recorded + TTL_MS > now);
            self.expired += (before - known.holders.len()) as u64;
        }
        self.prefixes.retain(|_, known| !known.holders.is_empty());
    }

    fn evict_excess(&mut self, now: u64) {
        if self.prefixes.len() < MAX_PREFIXES {
            return;
        }
        let mut order: Vec<(u64, String)> = self
            .prefixes
            .iter()
            .map(|(name, known)| {
                let live = known
                    .holders
                    .values()
                    .any(|(.., recorded)| *recorded + TTL_MS > now);
                (if live { known.used } else { 0 }, name.clone())
            })
            .collect();
        order.sort();
        let over = order.iter().filter(|(used, _)| *used == 0).count();
        for (_, name) in order.into_iter().take(over.max(MAX_PREFIXES / 10)) {
            let known = self.prefixes.remove(&name).unwrap();
            let (live, over): (Vec<_>, Vec<_>) = known
                .holders
                .into_values()
                .partition(|(.., recorded)| *recorded + TTL_MS > now);
            self.expired += over.len() as u64;
            self.evicted += live.len() as u64;
        }
    }

    fn record(&mut self, offloading: Offloading, backend: usize, event: &PrefixEvent, now: u64) {
        use EventKind::{Created, Evicted, Offloaded, Purged, Reloaded};
        let name = event.prefix.to_string();
        self.expire(Some(&name), now);
        let known = self
            .prefixes
            .get(&name)
            .and_then(|known| known.holders.get(&backend))
            .map(|(tokens, ..)| *tokens);
        let tokens = event.token_count.or(known);
        let (tokens, tier) = match (event.kind, offloading) {
            (Created | Reloaded, _) => (tokens.or(Some(256)), StorageTier::GpuHot),
            (Offloaded, Offloading::On { .. })
            | (
                Evicted,
                Offloading::On {
                    treat_eviction_as_offload: true,
                },
            ) => (tokens, StorageTier::StorageWarm),
            (Purged | Evicted | Offloaded, _) => {
                if let Some(known) = self.prefixes.get_mut(&name) {
                    known.holders.remove(&backend);
                    if known.holders.is_empty() {
                        self.prefixes.remove(&name);
                    }
                }
                return;
            }
        };
        let Some(tokens) = tokens else { return };
        if !self.prefixes.contains_key(&name) {
            self.evict_excess(now);
        }
        let known = self.prefixes.entry(name).or_default();
        known.used = now;
        known.holders.insert(backend, (tokens, tier, now));
    }

    fn query(&mut self, name: &str, now: u64) -> Vec<(&'static str, u32, StorageTier)> {
        self.expire(Some(name), now);
        let Some(known) = self.prefixes.get_mut(name) else {
            return Vec::new();
        };
        known.used = now;
        let mut holders: Vec<_> = known
            .holders
            .iter()
            .map(|(backend, (tokens, tier, _))| (BACKENDS[*backend], *tokens, *tier))
            .collect();
        holders
            .sort_by_key(|(backend, tokens, tier)| (std::cmp::Reverse(*tokens), *tier, *backend));
        holders
    }
}

proptest! {
    #[test]
    #[contract("CK50", "CK51", "CK54", "CK55", "CK56")]
    fn the_view_agrees_with_the_model_after_every_step(offloading in offloading(), steps in vec(step(), 1..400)) {
        let index = MemoryPrefixIndex::new(ViewSettings {
            max_entries: NonZeroUsize::new(MAX_PREFIXES).unwrap(),
            entry_ttl: Duration::from_millis(TTL_MS),
            offloading,
            max_prefix_length: 1024,
        });
        let mut model = ViewModel::default();
        let mut now = 0;
        for step in steps {
            now += 1;
            let moment = Moment::at(Duration::from_millis(now));
            match step {
                ViewStep::Record { backend, event } => {
                    index.record(&Arc::from(BACKENDS[backend]), &event, moment).unwrap();
                    model.record(offloading, backend, &event, now);
                }
                ViewStep::Query { number } => {
                    let holders = index.query(&prefix(number), moment).unwrap();
                    let holders: Vec<_> = holders.iter().map(|holder| (&*holder.backend, holder.tokens, holder.tier)).collect();
                    prop_assert_eq!(holders, model.query(&prefix(number).to_string(), now));
                }
                ViewStep::Wait { ms } => now += ms,
                ViewStep::CleanUp => {
                    let before = model.expired;
                    model.expire(None, now);
                    prop_assert_eq!(index.cleanup_expired(moment), model.expired - before);
                }
                ViewStep::RemoveBackend { backend } => {
                    index.remove_backend(BACKENDS[backend]).unwrap();
                    model.prefixes.values_mut().for_each(|known| known.holders.retain(|holder, _| *holder != backend));
                    model.prefixes.retain(|_, known| !known.holders.is_empty());
                }
                ViewStep::Clear => {
                    index.clear().unwrap();
                    model.prefixes.clear();
                }
            }
            let stats = index.stats();
            let count_in = |tier| {
                let all = model.prefixes.values().flat_map(|known| known.holders.values());
                all.filter(|(_, known, _)| *known == tier).count() as u64
            };
            prop_assert_eq!(stats.prefixes, model.prefixes.len() as u64);
            let hot: u64 = stats.backends.iter().map(|backend| backend.hot).sum();
            let warm: u64 = stats.backends.iter().map(|backend| backend.warm).sum();
            prop_assert_eq!((hot, warm), (count_in(StorageTier::GpuHot), count_in(StorageTier::StorageWarm)));
            prop_assert_eq!(stats.entries, hot + warm);
            prop_assert_eq!((stats.evicted_entries, stats.expired_entries), (model.evicted, model.expired));
        }
    }
}
