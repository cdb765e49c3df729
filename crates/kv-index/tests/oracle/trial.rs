//! The index beside the truth.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use kv_blocks::{IndexUpdate, Moment, Tier};
use kv_index::{IndexSettings, KvIndex, Matches, SpeculationId};

use super::{
    naming::Naming,
    random::{SplitMix64, mix},
    setup::{OracleMismatch, Setup, TrialCounts},
    step::{OracleStep, Pattern},
    truth::OracleTruth,
    whole,
    world::{NamespaceNo, NodeNo, OracleWorld, TargetNo},
};

/// Number of speculative calls that may still be retracted.
const MAX_SPECULATIONS: usize = 8;

/// An index and its expected content.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) world: Arc<OracleWorld>,
    pub(crate) index: Arc<KvIndex>,
    pub(crate) truth: OracleTruth,
    pub(super) namings: Vec<Naming>,
    pub(super) matches: Matches,
    speculations: VecDeque<(u64, SpeculationId)>,
    calls: u64,
    pub(super) tight: bool,
    pub(super) counts: TrialCounts,
}

impl Trial {
    pub(crate) fn new(setup: &Setup) -> Self {
        let mut dice = SplitMix64::new(mix(setup.seed));
        let world = OracleWorld::new(setup.extent, &mut dice);
        let settings = IndexSettings {
            unconfirmed_ttl: Duration::ZERO,
            ..IndexSettings::default()
        };
        let memory_budget = setup.tight.unwrap_or(settings.memory_budget);
        let index = KvIndex::new(IndexSettings {
            memory_budget,
            ..settings
        });
        let mut truth = OracleTruth::new(&world);
        let alike = dice.chance(30);
        let namings = world
            .targets()
            .map(|_| Naming::some(if alike { 0 } else { dice.below(8) }))
            .collect();
        for target in world.targets() {
            let model = usize::from(target.0 % 5 == 4);
            index.register(target.target(), world.model(model));
            truth.register(target, model);
        }
        Self {
            world: Arc::new(world),
            index: Arc::new(index),
            truth,
            namings,
            matches: Matches::default(),
            speculations: VecDeque::new(),
            calls: 0,
            tight: setup.tight.is_some(),
            counts: TrialCounts::default(),
        }
    }

    /// Applies all steps, then compares the complete content; a panic is also a difference.
    pub(crate) fn run(setup: &Setup, steps: &[OracleStep]) -> Result<TrialCounts, OracleMismatch> {
        let mut last = None;
        let played = catch_unwind(AssertUnwindSafe(|| {
            let mut trial = Self::new(setup);
            for (at, step) in steps.iter().enumerate() {
                last = Some(at);
                trial.play(step)?;
            }
            last = None;
            trial.finish().map(|()| trial.counts)
        }));
        let played = played.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(format!(
                "panicked: {}",
                text.or(panic.downcast_ref::<&str>().copied())
                    .unwrap_or("without a word")
            ))
        });
        let at = || {
            last.map_or("in the end".to_owned(), |at| {
                format!("step {at}, {:?}", steps[at])
            })
        };
        played.map_err(|what| OracleMismatch { at: at(), what })
    }

    pub(crate) fn now(&self) -> Moment {
        Moment::at(Duration::from_secs(self.truth.now_s))
    }

    /// Whether index and truth must agree: until the memory budget is reached.
    pub(crate) fn exact(&self) -> bool {
        !self.tight || self.index.stats().shed == 0
    }

    /// Removes the parts that a snapshot does not save: speculative blocks, waiting blocks and doubts.
    pub(crate) fn remove_unsaved(&mut self) {
        self.play(&OracleStep::Wait { seconds: 100 }).unwrap();
        self.play(&OracleStep::Expire).unwrap();
        // Speculative calls are retracted in the index in which they were made.
        (0..8).for_each(|_| self.play(&OracleStep::Retract { which: 0 }).unwrap());
        for target in self.world.targets() {
            let trust = OracleStep::Trust {
                target: target.0,
                trusted: true,
            };
            self.play(&trust).unwrap();
            if self.truth.has_waiting(target) {
                self.play(&OracleStep::Clear { target: target.0 }).unwrap();
            }
        }
        self.truth.orphans = 0;
    }

    /// Applies one step to both sides, and compares its visible effects.
    pub(crate) fn play(&mut self, step: &OracleStep) -> Result<(), String> {
        let world = Arc::clone(&self.world);
        match *step {
            OracleStep::Store {
                target,
                space,
                prompt,
                start,
                blocks,
                tier,
                labels,
            } => {
                let (target, space) = (world.target(target), world.space(space));
                let nodes = world.prompt(space, prompt);
                if let Some(range) = self.stretch(target, space, nodes, start, blocks, tier) {
                    self.announce(target, space, nodes, range, tier, labels)?;
                }
                self.look_up(space, nodes, 0)?;
            }
            OracleStep::Remove {
                target,
                space,
                prompt,
                pattern,
                tier,
                strangers,
            } => {
                let target = world.target(target);
                // If the target holds nothing of the prompt, one of the next prompts is used.
                let near = (0..24).map(|more| (world.space(space + more % 3), prompt + more / 3));
                let mut near = near.map(|(space, prompt)| (space, world.prompt(space, prompt)));
                let holds = |(space, nodes): &(NamespaceNo, &[NodeNo])| {
                    !self
                        .chosen(target, *space, nodes, Pattern::All, tier)
                        .is_empty()
                };
                let (space, nodes) = near.find(holds).unwrap_or_else(|| {
                    let space = world.space(space);
                    (space, world.prompt(space, prompt))
                });
                self.discard(
                    target,
                    space,
                    &self.chosen(target, space, nodes, pattern, tier),
                    tier,
                    strangers,
                )?;
                self.look_up(space, nodes, 0)?;
            }
            OracleStep::Expect {
                target,
                space,
                prompt,
                blocks,
                ttl_s,
                lasting,
            } => {
                let (target, space) = (world.target(target), world.space(space));
                let nodes = world.prompt(space, prompt);
                let fits = self.truth.model(target) == Some(world.spaces[space.0].model);
                if fits && !self.tight {
                    self.expect(
                        target,
                        space,
                        &nodes[..nodes.len().min(blocks.max(1))],
                        ttl_s,
                        lasting,
                    );
                }
                self.look_up(space, nodes, 0)?;
            }
            OracleStep::Look {
                space,
                prompt,
                blocks,
                strangers,
            } => {
                let space = world.space(space);
                let nodes = world.prompt(space, prompt);
                self.look_up(space, &nodes[..nodes.len().min(blocks)], strangers)?;
            }
            ref step => self.manage(step, &world),
        }
        let stats = self.index.stats();
        if stats.bytes > stats.budget_bytes {
            return Err(format!(
                "{} bytes in use, {} allowed",
                stats.bytes, stats.budget_bytes
            ));
        }
        Ok(())
    }

    /// Applies a step that concerns a whole target, or time.
    fn manage(&mut self, step: &OracleStep, world: &OracleWorld) {
        match *step {
            OracleStep::Cleared { target } => {
                let target = world.target(target);
                self.index.apply(target.target(), &IndexUpdate::Cleared);
                self.truth.clear_tier(target, Tier::Device);
            }
            OracleStep::Clear { target } => {
                let target = world.target(target);
                self.index.clear(target.target());
                self.truth.clear(target);
            }
            OracleStep::ClearStream {
                target,
                space,
                tier,
            } => {
                // The effect on blocks without a known namespace and on speculative entries is
                // unspecified. Once the memory budget was reached, only the index knows whether
                // blocks wait.
                let (target, space) = (world.target(target), world.space(space));
                let open = self.truth.has_waiting(target)
                    || self.truth.expects_of(target)
                    || !self.exact();
                if !open {
                    self.index
                        .clear_stream(target.target(), world.namespace(space), tier);
                    self.truth.clear_stream(target, space, tier);
                }
            }
            OracleStep::Restart { target, naming } => {
                let target = world.target(target);
                self.index.clear(target.target());
                self.truth.clear(target);
                self.namings[target.0] = Naming::some(naming);
            }
            OracleStep::RemoveWorker { target } => {
                let target = world.target(target);
                self.index.remove_worker(target.target().worker);
                self.truth.remove_worker(target);
            }
            OracleStep::Register { target, model } => {
                let target = world.target(target);
                self.index.register(target.target(), world.model(model));
                self.truth.register(target, model);
            }
            OracleStep::Retract { which } => {
                let at = self.speculations.len().checked_sub(which + 1);
                if let Some((call, speculation)) = at.and_then(|at| self.speculations.remove(at)) {
                    self.index.retract(speculation);
                    self.truth.retract(call);
                }
            }
            OracleStep::Wait { seconds } => self.truth.wait_until(self.truth.now_s + seconds),
            OracleStep::Expire => self.index.expire(self.now()),
            OracleStep::Hole { target } => self.index.mark_loss(world.target(target).target()),
            OracleStep::Trust { target, trusted } => {
                let target = world.target(target);
                if self.truth.model(target).is_some() {
                    self.index.trust(target.target(), trusted);
                    self.truth.trust(target, trusted);
                }
            }
            OracleStep::Store { .. }
            | OracleStep::Remove { .. }
            | OracleStep::Expect { .. }
            | OracleStep::Look { .. } => {}
        }
    }

    fn expect(
        &mut self,
        target: TargetNo,
        space: NamespaceNo,
        nodes: &[NodeNo],
        ttl_s: u64,
        lasting: bool,
    ) {
        let (namespace, chain) = (self.world.namespace(space), self.world.hashes(nodes));
        let ttl = Duration::from_secs(ttl_s);
        let speculation = if lasting {
            self.index
                .predict(target.target(), namespace, &chain, self.now(), ttl)
        } else {
            self.index
                .speculate(target.target(), namespace, &chain, self.now(), ttl)
        };
        self.calls += 1;
        self.truth.expect(target, space, nodes, ttl_s, self.calls);
        self.speculations.push_back((self.calls, speculation));
        if self.speculations.len() > MAX_SPECULATIONS {
            self.speculations.pop_front();
        }
    }

    /// Compares the complete content, and checks that nothing is left when all workers are removed.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        whole::compare(self)?;
        self.counts.shed += u64::from(!self.exact());
        if self.exact() {
            whole::compare_rebuilt(self)?;
        }
        for target in self.world.targets() {
            self.index.remove_worker(target.target().worker);
        }
        let stats = self.index.stats();
        if stats.memberships
            + stats.distinct
            + stats.speculative
            + stats.predicted
            + stats.namespaces
            > 0
        {
            return Err(format!(
                "all workers are removed, but not all their blocks: {stats:?}"
            ));
        }
        Ok(())
    }
}
