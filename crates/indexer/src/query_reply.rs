//! Builds the reply of a query: overlaps per target become one row per instance.

use std::{collections::BTreeMap, sync::Arc};

use api::InstanceOverlap;
use kv_blocks::{BlockSize, DpRank, Target, Tier};
use kv_index::{LabelledPrefix, Overlap};

/// Rows of one tenant, in tokens.
#[derive(Debug)]
pub(crate) struct TenantRows {
    block_size: BlockSize,
    rows: BTreeMap<Arc<str>, InstanceOverlap>,
}

impl TenantRows {
    pub(crate) fn new(block_size: BlockSize) -> Self {
        Self {
            block_size,
            rows: BTreeMap::new(),
        }
    }

    /// Adds a row of zeros unless the instance has a row.
    pub(crate) fn add_instance(&mut self, instance: &Arc<str>) {
        self.rows.entry(Arc::clone(instance)).or_default();
    }

    /// Adds a rank of an instance with its overlap with the queried chain.
    pub(crate) fn add(
        &mut self,
        instance: &Arc<str>,
        rank: DpRank,
        overlap: Option<(&Overlap, LabelledPrefix)>,
    ) {
        let row = self.rows.entry(Arc::clone(instance)).or_default();
        let longest = row.ranks.entry(rank.0).or_default();
        let Some((overlap, labelled)) = overlap else {
            return;
        };
        let tokens = |blocks: u32| u64::from(blocks) * u64::from(self.block_size.tokens());
        *longest = tokens(confirmed(overlap)).max(*longest);
        // Prefixes of different ranks are never joined: a request runs on one rank.
        row.longest_matched = row.longest_matched.max(*longest);
        let mut present = overlap.present;
        // Blocks on a medium with an unknown name are in the disk tier, under the medium's label.
        let disk = &mut present[Tier::Disk.index()];
        *disk = disk.saturating_sub(labelled.blocks);
        // A block in two tiers counts in both.
        let [device, host, disk, remote] = present.map(tokens);
        row.device = row.device.max(device);
        row.host = row.host.max(host);
        row.disk = row.disk.max(disk);
        row.remote = row.remote.max((remote > 0).then_some(remote));
        for (label, blocks) in labelled.labels {
            let most = row.labels.entry(api::medium_key(&label)).or_default();
            *most = tokens(blocks).max(*most);
        }
    }

    /// Returns the tenant's rows by instance.
    pub(crate) fn into_rows(self) -> BTreeMap<Arc<str>, InstanceOverlap> {
        self.rows
    }
}

/// Returns the announced blocks. Blocks that a router only expects after its own request are the
/// last ones of a prefix.
pub(crate) fn confirmed(overlap: &Overlap) -> u32 {
    let blocks = overlap.blocks;
    blocks.device + blocks.host + blocks.disk + blocks.remote
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
    use kv_blocks::{HashScheme, Moment, Namespace, PromptIdentity, Tier, WorkerId};
    use kv_index::{IndexSettings, KvIndex};
    use serde_json::{Value, json};

    use super::*;

    const SIZE: u32 = 64;

    fn target(worker: u32, rank: u32) -> Target {
        Target {
            worker: WorkerId(worker),
            rank: DpRank(rank),
        }
    }

    /// Returns the reply when targets hold this many of four leading blocks in these tiers.
    fn answer(resident: &[(Target, Tier, usize)]) -> Value {
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
        for (target, tier, blocks) in resident {
            index.register(*target, "m".into());
            index.store_hashes(*target, &namespace, None, &chain[..*blocks], *tier);
        }
        let found = by_target(index.lookup(&namespace, &chain, Moment::START));
        let mut rows = TenantRows::new(block_size);
        for (target, ..) in resident {
            let overlap = found.get(target);
            rows.add(
                &"i".into(),
                target.rank,
                overlap.map(|overlap| (overlap, LabelledPrefix::default())),
            );
        }
        serde_json::to_value(&rows.into_rows()["i"]).unwrap()
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
        let resident = [
            (target(1, 0), Tier::Device, 1),
            (target(1, 3), Tier::Remote, 3),
        ];
        let expected = json!({"longest_matched": 192, "GPU": 64, "DP": {"0": 64, "3": 192}, "CPU": 0, "DISK": 0, "REMOTE": 192});
        assert_eq!(answer(&resident), expected);
    }

    #[test]
    #[contract("MC4")]
    fn an_instance_without_a_hit_is_a_row_of_zeros() {
        let mut rows = TenantRows::new(BlockSize::new(16).unwrap());
        rows.add_instance(&"unknown".into());
        rows.add(&"idle".into(), DpRank(2), None);
        let zeros =
            |ranks| json!({"longest_matched": 0, "GPU": 0, "DP": ranks, "CPU": 0, "DISK": 0});
        let expected = json!({"idle": zeros(json!({"2": 0})), "unknown": zeros(json!({}))});
        assert_eq!(serde_json::to_value(rows.into_rows()).unwrap(), expected);
    }
}
