//! The answers of lookups, in both forms.

use std::collections::{BTreeMap, HashMap};

use kv_blocks::{SequenceHash, Target};
use kv_index::{Matches, Overlap};

use super::{
    random::mix,
    trial::Trial,
    truth::ExpectedAnswer,
    world::{NamespaceNo, NodeNo},
};

impl Trial {
    /// Looks up blocks of a prompt, with `strangers` unknown blocks behind them.
    pub(crate) fn look_up(
        &mut self,
        space: NamespaceNo,
        nodes: &[NodeNo],
        strangers: usize,
    ) -> Result<(), String> {
        let mut chain = self.world.hashes(nodes);
        chain.extend((0..strangers).map(|number| SequenceHash(mix(number as u64))));
        let found = self
            .index
            .lookup(self.world.namespace(space), &chain, self.now());
        let correct = self.truth.lookup(space, nodes);
        self.counts.queries += 1;
        self.counts.credited += found.len() as u64;
        let compared = if self.exact() {
            same(&found, &correct)
        } else {
            no_more(&found, &correct)
        };
        let compared = compared.and_then(|()| self.look_up_natively(space, &chain, &found));
        compared.map_err(|wrong| format!("lookup of {} blocks in {space:?}: {wrong}", chain.len()))
    }

    /// Checks that the form that the router uses agrees for every trusted target.
    fn look_up_natively(
        &mut self,
        space: NamespaceNo,
        chain: &[SequenceHash],
        listed: &[Overlap],
    ) -> Result<(), String> {
        let key = self.index.namespace_key(self.world.namespace(space));
        self.index
            .lookup_into(key, chain, self.now(), &mut self.matches);
        let found = self.credits(&self.matches)?;
        let trusted = |target: &Target| self.truth.trusts(*target);
        let correct: BTreeMap<_, _> = listed
            .iter()
            .map(|overlap| (overlap.target, overlap.blocks.total()))
            .collect();
        let differs = found
            .keys()
            .chain(correct.keys())
            .find(|target| trusted(target) && found.get(target) != correct.get(target));
        match differs {
            Some(target) => Err(format!(
                "{target}: {:?} in place of {:?}",
                found.get(target),
                correct.get(target)
            )),
            None if self.matches.best() != found.values().copied().max().unwrap_or(0) => Err(
                format!("the best has {}, but not of {found:?}", self.matches.best()),
            ),
            None => Ok(()),
        }
    }

    /// Returns every credited target with the length of its run.
    pub(crate) fn credits(&self, matches: &Matches) -> Result<BTreeMap<Target, u32>, String> {
        let slots: HashMap<_, _> = self
            .world
            .targets()
            .filter_map(|t| Some((self.index.slot(t.target())?, t.target())))
            .collect();
        let mut credits = BTreeMap::new();
        for (slot, blocks) in matches.iter() {
            let target = slots
                .get(&slot)
                .ok_or_else(|| format!("{slot:?} is nobody's"))?;
            if blocks == 0 || credits.insert(*target, blocks).is_some() {
                return Err(format!("{slot:?} holds {blocks} blocks, or occurs twice"));
            }
        }
        Ok(credits)
    }
}

fn same(found: &[Overlap], correct: &[ExpectedAnswer]) -> Result<(), String> {
    let agree = |found: &Overlap, correct: &ExpectedAnswer| {
        (found.target, found.blocks, found.announced, found.present)
            == (
                correct.target,
                correct.blocks,
                correct.announced,
                correct.present,
            )
    };
    if found.len() == correct.len()
        && found
            .iter()
            .zip(correct)
            .all(|(found, correct)| agree(found, correct))
    {
        return Ok(());
    }
    let missing = correct
        .iter()
        .filter(|correct| !found.iter().any(|found| agree(found, correct)));
    let surplus = found
        .iter()
        .filter(|found| !correct.iter().any(|correct| agree(found, correct)));
    Err(format!(
        "expected {:?} in place of {:?}",
        missing.collect::<Vec<_>>(),
        surplus.collect::<Vec<_>>()
    ))
}

/// Checks that no target is credited with more than it holds.
fn no_more(found: &[Overlap], correct: &[ExpectedAnswer]) -> Result<(), String> {
    let known: HashMap<_, _> = correct
        .iter()
        .map(|answer| (answer.target, answer.blocks.total()))
        .collect();
    let most = |overlap: &&Overlap| known.get(&overlap.target).copied().unwrap_or(0);
    match found
        .iter()
        .find(|overlap| overlap.blocks.total() > most(overlap))
    {
        Some(overlap) => Err(format!(
            "{overlap:?} although only {} are held",
            most(&overlap)
        )),
        None => Ok(()),
    }
}
