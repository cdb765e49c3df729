//! Comparison of the complete content.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use kv_blocks::{EngineHash, IndexUpdate, RemovedBlocks, SequenceHash, StoredBlocks, Tier};
use kv_index::{DumpCursor, IndexSettings, KvIndex, Matches};

use super::{
    random::mix,
    trial::Trial,
    world::{NamespaceNo, NodeNo, OracleWorld, TargetNo},
};

/// Compares dump, counts and the answers for every prompt.
pub(crate) fn compare(trial: &mut Trial) -> Result<(), String> {
    let world = Arc::clone(&trial.world);
    compare_rows(trial, &world)?;
    if trial.exact() {
        compare_counts(trial, &world)?;
    }
    for space in world.spaces() {
        for prompt in 0..world.prompts(space) {
            trial.look_up(space, world.prompt(space, prompt), 0)?;
        }
        compare_batch(trial, &world, space)?;
    }
    Ok(())
}

/// Checks that several lookups at once answer as each alone.
fn compare_batch(trial: &Trial, world: &OracleWorld, space: NamespaceNo) -> Result<(), String> {
    let key = trial.index.namespace_key(world.namespace(space));
    let chains: Vec<_> = (0..world.prompts(space))
        .map(|prompt| world.hashes(world.prompt(space, prompt)))
        .collect();
    let chains: Vec<&[SequenceHash]> = chains.iter().map(Vec::as_slice).chain([&[][..]]).collect();
    let mut together: Vec<_> = chains.iter().map(|_| Matches::default()).collect();
    trial
        .index
        .lookup_batch(key, &chains, trial.now(), &mut together);
    let mut alone = Matches::default();
    for (chain, together) in chains.into_iter().zip(&together) {
        trial.index.lookup_into(key, chain, trial.now(), &mut alone);
        let (together, alone) = (trial.credits(together)?, trial.credits(&alone)?);
        if together != alone {
            return Err(format!(
                "together with others a lookup answers {together:?} in place of {alone:?}"
            ));
        }
    }
    Ok(())
}

fn compare_rows(trial: &Trial, world: &OracleWorld) -> Result<(), String> {
    let spaces: HashMap<_, _> = world
        .spaces()
        .map(|space| (world.namespace(space), space))
        .collect();
    let mut cells = HashMap::new();
    for space in world.spaces() {
        for prompt in 0..world.prompts(space) {
            let nodes = world.prompt(space, prompt).iter();
            cells.extend(nodes.map(|node| ((space, world.nodes[node.0].hash), *node)));
        }
    }
    let targets: HashMap<_, _> = world
        .targets()
        .map(|target| (target.target(), target))
        .collect();
    let mut rows = HashSet::new();
    let mut cursor = DumpCursor::default();
    for row in std::iter::from_fn(|| trial.index.dump(&mut cursor)).flatten() {
        let space = spaces
            .get(&*row.namespace)
            .ok_or_else(|| format!("dump: unknown namespace: {row:?}"))?;
        let node = *cells
            .get(&(*space, row.hash))
            .ok_or_else(|| format!("dump: unknown block: {row:?}"))?;
        let known = &world.nodes[node.0];
        let parent = known.parent.map(|parent| world.nodes[parent.0].hash);
        if (row.depth, row.parent) != (known.depth, parent)
            || row.salt_digest.is_some() != row.namespace.salt.is_some()
        {
            return Err(format!(
                "dump: {row:?} is at depth {} behind {parent:?}",
                known.depth
            ));
        }
        let target = targets[&row.target];
        if !trial.truth.holds(target, *space, node, row.tier) {
            return Err(format!("dump: {row:?} is not held"));
        }
        if !rows.insert((target, row.tier, world.cell(*space, node))) {
            return Err(format!("dump: {row:?} came twice"));
        }
    }
    if trial.exact()
        && let Some((target, tier, cell)) = trial.truth.rows().find(|row| !rows.contains(row))
    {
        return Err(format!(
            "dump: cell {cell} of {target:?} in {tier:?} is missing"
        ));
    }
    Ok(())
}

fn compare_counts(trial: &Trial, world: &OracleWorld) -> Result<(), String> {
    trial.index.expire(trial.now());
    let stats = trial.index.stats();
    let (distinct, memberships, per_tier) = trial.truth.totals();
    let found = [
        stats.distinct,
        stats.memberships,
        stats.speculative + stats.predicted,
        stats.orphans,
        stats.shed,
    ];
    let expected = [
        distinct,
        memberships,
        trial.truth.expected_blocks(),
        trial.truth.orphans,
        0,
    ];
    if found != expected {
        return Err(format!(
            "distinct, memberships, unconfirmed, orphans, shed: {found:?} in place of {expected:?}"
        ));
    }
    for target in world.targets() {
        let (found, expected) = (
            trial.index.blocks_per_tier(target.target()),
            per_tier[target.0],
        );
        if found != expected {
            return Err(format!(
                "blocks per tier of {target:?}: {found:?} in place of {expected:?}"
            ));
        }
    }
    let digests = trial.index.digest();
    let found: Vec<_> = digests
        .iter()
        .map(|digest| (digest.target, digest.tier, digest.blocks))
        .collect();
    let resident = world
        .targets()
        .flat_map(|target| Tier::ALL.map(|tier| (target, tier)));
    let expected =
        resident.map(|(target, tier)| (target.target(), tier, per_tier[target.0][tier.index()]));
    let expected: Vec<_> = expected.filter(|(_, _, blocks)| *blocks > 0).collect();
    if found == expected {
        Ok(())
    } else {
        Err(format!(
            "digests are for {found:?} in place of {expected:?}"
        ))
    }
}

/// Checks that the same content, announced again in another order and with other hashes, has the
/// same digests.
pub(crate) fn compare_rebuilt(trial: &Trial) -> Result<(), String> {
    let world = &trial.world;
    let index = KvIndex::new(IndexSettings::default());
    for ((target, tier, space), nodes) in trial.truth.by_holder().into_iter().rev() {
        index.register(target.target(), Arc::clone(&world.namespace(space).model));
        rebuild(&index, world, (target, tier, space), &nodes);
    }
    let (found, expected) = (trial.index.digest(), index.digest());
    let differs = found
        .iter()
        .zip(&expected)
        .find(|(found, expected)| found != expected);
    match differs {
        None if found.len() == expected.len() => Ok(()),
        _ => Err(format!(
            "digests of the same content differ: {differs:?}, {} and {} of them",
            found.len(),
            expected.len()
        )),
    }
}

/// Announces whole beginnings of prompts, then removes the surplus.
fn rebuild(
    index: &KvIndex,
    world: &OracleWorld,
    (target, tier, space): (TargetNo, Tier, NamespaceNo),
    resident: &BTreeSet<NodeNo>,
) {
    let name = |node: &NodeNo| EngineHash(mix(world.cell(space, *node) as u64) ^ 0x5555);
    let namespace = world.namespace(space);
    let mut stored = BTreeSet::new();
    for prompt in (0..world.prompts(space)).rev() {
        let prompt = world.prompt(space, prompt);
        let Some(last) = prompt.iter().rposition(|node| resident.contains(node)) else {
            continue;
        };
        let nodes = &prompt[..=last];
        let event = StoredBlocks {
            hashes: nodes.iter().map(name).collect(),
            parent: None,
            tokens: world.tokens(nodes),
            block_size: namespace.block_size,
            lora: namespace.lora.clone(),
            media: Vec::new(),
            salt: namespace.salt.clone(),
            tier,
        };
        index.apply(target.target(), &IndexUpdate::Stored(event));
        stored.extend(nodes.iter().copied());
    }
    let hashes = stored.difference(resident).map(name).collect();
    index.apply(
        target.target(),
        &IndexUpdate::Removed(RemovedBlocks { hashes, tier }),
    );
}
