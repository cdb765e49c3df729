//! Builds the reply of a query: overlaps per target become one row per instance.

use std::{collections::BTreeMap, sync::Arc};

use kv_blocks::{BlockSize, DpRank, Target, Tier};
use kv_index::{LabelledPrefix, Overlap};
use serde_json::{Map, Value};

/// Row of one instance, in blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct InstanceRow {
    /// Longest prefix of each rank, over all tiers.
    ranks: BTreeMap<DpRank, u32>,
    /// Blocks of the prefix in each tier, for the rank that has the most. A block in two tiers
    /// counts in both.
    present: [u32; Tier::ALL.len()],
    /// Blocks of the prefix on each medium with an unknown name, for the rank that has the most.
    labels: BTreeMap<Arc<str>, u32>,
}

/// Rows of one tenant.
#[derive(Debug, Default)]
pub(crate) struct TenantRows(BTreeMap<Arc<str>, InstanceRow>);

impl TenantRows {
    /// Adds a row of zeros unless the instance has a row.
    pub(crate) fn add_instance(&mut self, instance: &Arc<str>) {
        self.0.entry(Arc::clone(instance)).or_default();
    }

    /// Adds a rank of an instance with its overlap with the queried chain.
    pub(crate) fn add(
        &mut self,
        instance: &Arc<str>,
        rank: DpRank,
        held: Option<(&Overlap, LabelledPrefix)>,
    ) {
        let row = self.0.entry(Arc::clone(instance)).or_default();
        let longest = row.ranks.entry(rank).or_default();
        let Some((held, labelled)) = held else { return };
        *longest = confirmed(held).max(*longest);
        // Blocks on a medium with an unknown name are in the disk tier, under the medium's label.
        let mut present = held.present;
        let disk = &mut present[Tier::Disk.index()];
        *disk = disk.saturating_sub(labelled.blocks);
        for (most, present) in row.present.iter_mut().zip(present) {
            *most = present.max(*most);
        }
        for (label, blocks) in labelled.labels {
            let most = row.labels.entry(label).or_default();
            *most = blocks.max(*most);
        }
    }

    /// Returns the tenant's object of the reply, in tokens.
    pub(crate) fn json(&self, block_size: BlockSize) -> Value {
        let rows = self
            .0
            .iter()
            .map(|(instance, row)| (instance.to_string(), row.json(block_size)));
        Value::Object(rows.collect())
    }
}

impl InstanceRow {
    fn json(&self, block_size: BlockSize) -> Value {
        let tokens = |blocks: u32| Value::from(u64::from(blocks) * u64::from(block_size.tokens()));
        let ranks = self
            .ranks
            .iter()
            .map(|(rank, blocks)| (rank.0.to_string(), tokens(*blocks)));
        let mut row = Map::new();
        // Prefixes of different ranks are never joined: a request runs on one rank.
        row.insert(
            "longest_matched".to_owned(),
            tokens(self.ranks.values().copied().max().unwrap_or(0)),
        );
        row.insert(
            medium(Tier::Device).to_owned(),
            tokens(self.present[Tier::Device.index()]),
        );
        row.insert("DP".to_owned(), Value::Object(ranks.collect()));
        for tier in [Tier::Host, Tier::Disk, Tier::Remote] {
            let blocks = self.present[tier.index()];
            // The first three tiers are always present, the others only if they hold blocks.
            if tier != Tier::Remote || blocks > 0 {
                row.insert(medium(tier).to_owned(), tokens(blocks));
            }
        }
        for (label, blocks) in &self.labels {
            let mut name = label.to_string();
            if row.contains_key(&name) {
                name.insert_str(0, "medium ");
            }
            row.insert(name, tokens(*blocks));
        }
        Value::Object(row)
    }
}

/// Returns the announced blocks. Blocks that a router only expects after its own request are the
/// last ones of a prefix.
pub(crate) fn confirmed(held: &Overlap) -> u32 {
    let blocks = held.blocks;
    blocks.device + blocks.host + blocks.disk + blocks.remote
}

/// Returns the name of a tier in replies.
pub(crate) fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "GPU",
        Tier::Host => "CPU",
        Tier::Disk => "DISK",
        Tier::Remote => "REMOTE",
    }
}

/// Groups the overlaps by target.
pub(crate) fn by_target(found: Vec<Overlap>) -> BTreeMap<Target, Overlap> {
    found
        .into_iter()
        .map(|overlap| (overlap.target, overlap))
        .collect()
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use kv_blocks::{HashScheme, Moment, Namespace, PromptIdentity, WorkerId};
    use kv_index::{IndexSettings, KvIndex};
    use serde_json::json;

    use super::*;

    const SIZE: u32 = 64;

    fn target(worker: u32, rank: u32) -> Target {
        Target {
            worker: WorkerId(worker),
            rank: DpRank(rank),
        }
    }

    /// Returns the reply when targets hold this many of four leading blocks in these tiers.
    fn answer(held: &[(Target, Tier, usize)]) -> Value {
        let block_size = BlockSize::new(SIZE.into()).unwrap();
        let namespace = Namespace {
            model: "m".into(),
            lora: None,
            salt: None,
            block_size,
            identity: PromptIdentity::Tokens,
        };
        let chain = HashScheme::default().chain(None, &[7; 4 * SIZE as usize], block_size);
        let index = KvIndex::new(IndexSettings::default());
        for (target, tier, blocks) in held {
            index.register(*target, "m".into());
            index.store_hashes(*target, &namespace, None, &chain[..*blocks], *tier);
        }
        let found = by_target(index.lookup(&namespace, &chain, Moment::START));
        let mut rows = TenantRows::default();
        for (target, ..) in held {
            let held = found.get(target);
            rows.add(
                &"i".into(),
                target.rank,
                held.map(|held| (held, LabelledPrefix::default())),
            );
        }
        rows.json(block_size)["i"].clone()
    }

    #[test]
    #[contract("MC4")]
    fn two_ranks_with_128_and_256_tokens_give_the_documented_sample() {
        let expected = json!({"longest_matched": 256, "GPU": 128, "DP": {"0": 128, "1": 256}, "CPU": 256, "DISK": 0});
        let all_on_the_host = [
            (target(1, 0), Tier::Device, 2),
            (target(1, 1), Tier::Host, 4),
        ];
        assert_eq!(answer(&all_on_the_host), expected);
        let half_on_both = [
            (target(1, 0), Tier::Device, 2),
            (target(1, 1), Tier::Device, 2),
            (target(1, 1), Tier::Host, 4),
        ];
        assert_eq!(answer(&half_on_both), expected);
    }

    #[test]
    #[contract("MC4")]
    fn ranks_are_never_combined_and_a_shared_store_has_its_own_name() {
        let held = [
            (target(1, 0), Tier::Device, 1),
            (target(1, 3), Tier::Remote, 3),
        ];
        let expected = json!({"longest_matched": 192, "GPU": 64, "DP": {"0": 64, "3": 192}, "CPU": 0, "DISK": 0, "REMOTE": 192});
        assert_eq!(answer(&held), expected);
    }

    #[test]
    #[contract("MC4")]
    fn an_instance_without_a_hit_is_a_row_of_zeros() {
        let mut rows = TenantRows::default();
        rows.add_instance(&"unknown".into());
        rows.add(&"idle".into(), DpRank(2), None);
        let zeros =
            |ranks| json!({"longest_matched": 0, "GPU": 0, "DP": ranks, "CPU": 0, "DISK": 0});
        let expected = json!({"idle": zeros(json!({"2": 0})), "unknown": zeros(json!({}))});
        assert_eq!(rows.json(BlockSize::new(16).unwrap()), expected);
    }
}
