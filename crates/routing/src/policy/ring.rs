//! A ring of hashed points: stable owners of keys while targets come and go.
//!
//! Every target has a number of points on the circle of all `u64`: the 64-bit XXH3, with the
//! configured seed, of the bytes `NAME/RANK#i`, `i` from 0, numbers in decimal. A key is a position on
//! the circle and belongs to the target of the first point at or after it, with wrap-around.
//!
//! **Invariant**: the owner of a key depends on names, ranks, number of points and seed alone, so
//! restarts, replicas and the order of the candidates do not change it, and a target that leaves
//! moves only its own keys.

use std::{cell::RefCell, fmt::Write, iter, sync::Arc};

use kv_blocks::{Target, WorkerId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::rule::PolicyCandidate;

/// Most cached rings, and most points of all of them together (16 bytes each); the least recently
/// used ring is dropped, the latest stays.
const MOST_RINGS: usize = 64;
const MOST_POINTS: usize = 1 << 22;
/// A ring also serves a subset of its targets (a retry, a busy worker) of at least one in this
/// many: skipping the points of a few costs nothing, while building and sorting all others again
/// would.
const SERVES_ONE_IN: usize = 2;
/// Most points of one target.
const MOST_VIRTUAL_NODES: u32 = 10_000;

/// The rings of recently used fleets.
///
/// Only a cache: it changes no result, so a rule may use it without being chosen. The router's lock
/// protects it.
#[derive(Debug)]
pub(super) struct RingCache {
    virtual_nodes: u32,
    seed: u64,
    /// Most recently used first.
    rings: RefCell<Vec<Arc<HashRing>>>,
}

impl RingCache {
    pub(super) fn new(virtual_nodes: u32, seed: u64) -> Self {
        Self {
            virtual_nodes: virtual_nodes.clamp(1, MOST_VIRTUAL_NODES),
            seed,
            rings: RefCell::default(),
        }
    }

    /// Returns the ring for `contenders`, built unless it is cached.
    pub(super) fn around(&self, contenders: &[PolicyCandidate<'_>]) -> RingWalk {
        if let Some(ring) = self.same_members(contenders) {
            return RingWalk {
                ring,
                candidates: MemberCandidates::InOrder,
            };
        }
        let mut sorted: Vec<usize> = (0..contenders.len()).collect();
        sorted.sort_unstable_by_key(|i| contenders[*i].target());
        sorted.dedup_by_key(|i| contenders[*i].target());
        if sorted.len() < 2 {
            // A single candidate needs no cached ring: pinned requests must not evict the rings of
            // whole fleets.
            let ring = Arc::new(HashRing::build(contenders, &sorted, 1, self.seed));
            return RingWalk {
                ring,
                candidates: MemberCandidates::all(sorted),
            };
        }
        let mut cached = self.rings.borrow_mut();
        let known = cached.iter().enumerate().find_map(|(position, ring)| {
            Some((position, ring.member_candidates(contenders, &sorted)?))
        });
        if let Some((position, member_candidates)) = known {
            cached[..=position].rotate_right(1);
            return RingWalk {
                ring: Arc::clone(&cached[0]),
                candidates: MemberCandidates::Listed(member_candidates),
            };
        }
        let ring = Arc::new(HashRing::build(
            contenders,
            &sorted,
            self.virtual_nodes,
            self.seed,
        ));
        cached.insert(0, Arc::clone(&ring));
        cached.truncate(MOST_RINGS);
        while cached.len() > 1
            && cached.iter().map(|ring| ring.points.len()).sum::<usize>() > MOST_POINTS
        {
            cached.pop();
        }
        RingWalk {
            ring,
            candidates: MemberCandidates::all(sorted),
        }
    }

    /// Returns the cached ring whose members are exactly these candidates, in this order: the case
    /// of nearly all requests, for which nothing is sorted or allocated.
    fn same_members(&self, contenders: &[PolicyCandidate<'_>]) -> Option<Arc<HashRing>> {
        let mut cached = self.rings.borrow_mut();
        let position = cached.iter().position(|ring| ring.is_of(contenders))?;
        cached[..=position].rotate_right(1);
        Some(Arc::clone(&cached[0]))
    }

    /// Drops the rings on which `worker` has points.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.rings.get_mut().retain(|ring| {
            ring.members
                .iter()
                .all(|member| member.target.worker != worker)
        });
    }
}

/// A ring as used by one request.
#[derive(Debug)]
pub(super) struct RingWalk {
    ring: Arc<HashRing>,
    candidates: MemberCandidates,
}

/// The index of each member among the candidates.
#[derive(Debug)]
enum MemberCandidates {
    /// That of the member: they are the same, in the same order.
    InOrder,
    /// One for each member; `None` for one that may not take the request.
    Listed(Vec<Option<usize>>),
}

impl MemberCandidates {
    fn all(indexes: Vec<usize>) -> Self {
        Self::Listed(indexes.into_iter().map(Some).collect())
    }

    fn of(&self, member: usize) -> Option<usize> {
        match self {
            Self::InOrder => Some(member),
            Self::Listed(indexes) => indexes[member],
        }
    }
}

impl RingWalk {
    /// Returns candidates by their points, once round from `key` on; each as often as it has
    /// points.
    pub(super) fn clockwise(&self, key: u64) -> impl Iterator<Item = usize> + '_ {
        let (before, from) = self.ring.points.split_at(
            self.ring
                .points
                .partition_point(|point| point.position < key),
        );
        from.iter()
            .chain(before)
            .filter_map(|point| self.candidates.of(point.member))
    }
}

/// The points of a set of targets.
#[derive(Debug)]
struct HashRing {
    /// Sorted by target, each once.
    members: Vec<RingMember>,
    /// Sorted by position.
    points: Vec<RingPoint>,
}

#[derive(Debug)]
struct RingMember {
    target: Target,
    name: Arc<str>,
}

#[derive(Clone, Copy, Debug)]
struct RingPoint {
    position: u64,
    member: usize,
}

impl HashRing {
    /// Builds a ring; `sorted` has the candidates in the order of their targets.
    fn build(
        contenders: &[PolicyCandidate<'_>],
        sorted: &[usize],
        virtual_nodes: u32,
        seed: u64,
    ) -> Self {
        let member = |i: &usize| RingMember {
            target: contenders[*i].target(),
            name: Arc::clone(&contenders[*i].overlap.candidate.name),
        };
        let members: Vec<RingMember> = sorted.iter().map(member).collect();
        let mut points: Vec<RingPoint> = members
            .iter()
            .enumerate()
            .flat_map(|(i, member)| {
                point_positions(member, virtual_nodes, seed).map(move |position| RingPoint {
                    position,
                    member: i,
                })
            })
            .collect();
        // Two points at one position are ordered by name too: ids of workers change with a restart.
        let named = |point: &RingPoint| {
            (
                &members[point.member].name,
                members[point.member].target.rank,
            )
        };
        points.sort_unstable_by(|a, b| {
            a.position
                .cmp(&b.position)
                .then_with(|| named(a).cmp(&named(b)))
        });
        Self { members, points }
    }

    /// Returns whether its members are exactly `contenders`, in this order.
    fn is_of(&self, contenders: &[PolicyCandidate<'_>]) -> bool {
        // A worker's number is given once and keeps its name; equal names are one allocation, but
        // for candidates of tests.
        let is_same = |(member, contender): (&RingMember, &PolicyCandidate<'_>)| {
            let name = &contender.overlap.candidate.name;
            member.target == contender.target()
                && (Arc::ptr_eq(&member.name, name) || member.name == *name)
        };
        self.members.len() == contenders.len() && self.members.iter().zip(contenders).all(is_same)
    }

    /// Returns the index of each member among `contenders`; `None` if the ring does not fit them.
    fn member_candidates(
        &self,
        contenders: &[PolicyCandidate<'_>],
        sorted: &[usize],
    ) -> Option<Vec<Option<usize>>> {
        if sorted.len() > self.members.len()
            || sorted.len().saturating_mul(SERVES_ONE_IN) < self.members.len()
        {
            return None;
        }
        let mut member_candidates = vec![None; self.members.len()];
        let mut members = self.members.iter().enumerate();
        for i in sorted {
            let (position, member) =
                members.find(|(_, member)| member.target >= contenders[*i].target())?;
            if member.target != contenders[*i].target()
                || member.name != contenders[*i].overlap.candidate.name
            {
                return None;
            }
            member_candidates[position] = Some(*i);
        }
        Some(member_candidates)
    }
}

fn point_positions(
    member: &RingMember,
    virtual_nodes: u32,
    seed: u64,
) -> impl Iterator<Item = u64> {
    let mut text = identity(&member.name, member.target);
    let identity = text.len();
    let mut numbers = 0..virtual_nodes;
    iter::from_fn(move || {
        text.truncate(identity);
        write!(text, "#{}", numbers.next()?).expect("a string takes all that is written to it");
        Some(xxh3_64_with_seed(text.as_bytes(), seed))
    })
}

/// Returns `NAME/RANK`, the input of a target's hash.
pub(super) fn identity(name: &str, target: Target) -> String {
    format!("{name}/{}", target.rank.0)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use kv_blocks::{BlockSize, DpRank, Moment, Namespace, PromptIdentity};
    use kv_index::{IndexSettings, KvIndex};

    use super::*;
    use crate::{
        CacheSource, Candidate, Job, LmcacheFacts, RoutingSettings, TargetPool, Tiers,
        state::RouterState,
    };

    fn candidate(worker: u32) -> Candidate {
        Candidate {
            target: Target {
                worker: WorkerId(worker),
                rank: DpRank(0),
            },
            name: format!("w{worker}").into(),
            namespace: Namespace {
                model: "m".into(),
                lora: None,
                salt: None,
                block_size: BlockSize::new(16).expect("a block size"),
                identity: PromptIdentity::Tokens,
            },
            weight: 1.0,
            cache: CacheSource::Events,
            total_blocks: None,
            tiers: Tiers::default(),
            stream_state: None,
            health: "ready",
            lmcache: LmcacheFacts::default(),
            usage: None,
            fetches: false,
        }
    }

    /// Returns the owner of `key` when `workers` may take the request.
    fn owner(rings: &RingCache, workers: &[u32], key: u64) -> u32 {
        let candidates: Vec<Candidate> = workers.iter().copied().map(candidate).collect();
        let job = Job {
            targets: TargetPool {
                candidates: &candidates,
                ..TargetPool::default()
            },
            ..Job::default()
        };
        let settings = RoutingSettings::default();
        let index = KvIndex::new(IndexSettings::default());
        let survey = crate::survey::survey(&index, Moment::START, &job);
        let mut state = RouterState::new(&settings);
        let place = state.queue.place_of_new(&job.tenant());
        let input = state.policy_input(Moment::START, (&job, place), &settings, survey);
        let contenders = &input.candidates;
        let owner = rings
            .around(contenders)
            .clockwise(key)
            .next()
            .expect("a target has points");
        contenders[owner].target().worker.0
    }

    fn cached(rings: &RingCache) -> Vec<usize> {
        rings
            .rings
            .borrow()
            .iter()
            .map(|ring| ring.members.len())
            .collect()
    }

    #[test]
    #[contract("CK4")]
    fn every_target_has_its_points_and_the_ring_is_built_once() {
        let rings = RingCache::new(RoutingSettings::default().ring().virtual_nodes, 0);
        for key in 0..20 {
            owner(&rings, &[3, 1, 2], key << 59);
        }
        assert_eq!(cached(&rings), [3]);
        let ring = Arc::clone(&rings.rings.borrow()[0]);
        for member in 0..3 {
            assert_eq!(
                ring.points
                    .iter()
                    .filter(|point| point.member == member)
                    .count(),
                150
            );
        }
        assert!(
            ring.points
                .windows(2)
                .all(|pair| pair[0].position < pair[1].position)
        );
    }

    #[test]
    fn a_ring_serves_most_of_its_targets_and_a_pinned_request_needs_none() {
        let rings = RingCache::new(10, 0);
        owner(&rings, &[1, 2, 3, 4, 5, 6], 1);
        assert_ne!(owner(&rings, &[1, 2, 3], 1), 4);
        assert_eq!(owner(&rings, &[5], 1), 5);
        assert_eq!(cached(&rings), [6]);
        owner(&rings, &[1, 2], 1);
        owner(&rings, &[1, 7], 1);
        assert_eq!(cached(&rings), [2, 2, 6]);
    }

    #[test]
    fn rings_are_bounded_in_number_and_the_least_recently_used_is_evicted() {
        let rings = RingCache::new(1, 0);
        owner(&rings, &[1, 2, 3], 1);
        for worker in 0..200 {
            owner(&rings, &[10 * worker, 10 * worker + 1], 1);
            owner(&rings, &[1, 2, 3], 1);
        }
        assert_eq!(rings.rings.borrow().len(), MOST_RINGS);
        assert_eq!(cached(&rings)[0], 3, "a ring in use stays");
        assert_eq!(
            rings.rings.borrow()[1].members[0].target.worker,
            WorkerId(1990)
        );
    }

    #[test]
    fn rings_are_bounded_in_points_and_a_larger_one_still_serves() {
        let points = usize::try_from(MOST_VIRTUAL_NODES).expect("few");
        let rings = RingCache::new(u32::MAX, 0);
        let fleet = |first: u32| (first..first + 150).collect::<Vec<u32>>();
        for first in [0, 1000, 2000] {
            owner(&rings, &fleet(first), 1);
        }
        assert_eq!(
            cached(&rings).iter().sum::<usize>() * points,
            2 * 150 * points
        );
        assert!(2 * 150 * points <= MOST_POINTS);
        let large: Vec<u32> = (5000..5450).collect();
        owner(&rings, &large, 1);
        assert_eq!(cached(&rings), [450]);
    }

    #[test]
    fn the_rings_of_a_removed_worker_are_dropped() {
        let mut rings = RingCache::new(10, 0);
        owner(&rings, &[1, 2], 1);
        owner(&rings, &[3, 4], 1);
        rings.forget(WorkerId(2));
        assert_eq!(cached(&rings), [2]);
        assert_eq!(
            rings.rings.borrow()[0].members[0].target.worker,
            WorkerId(3)
        );
    }
}
