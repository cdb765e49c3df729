//! How long lookups take.

use std::{hint::black_box, time::Instant};

use kv_blocks::{Moment, SequenceHash};
use kv_index::Matches;

use super::{
    load::{IndexLoad, Query, QueryKind},
    memory::resident_bytes,
};

/// Hashes of all queries together, so that the queries take a known share of memory.
const HASHES: usize = 16 << 20;
/// The queries are asked once to warm up, and then so many times.
const ROUNDS: usize = 3;

/// One index as it was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexMeasurement {
    pub(crate) targets: u32,
    pub(crate) memberships: u64,
    pub(crate) distinct: u64,
    /// Bytes by which the process grew, per membership.
    pub(crate) process_bytes: f64,
    /// Bytes the index counts, per membership.
    pub(crate) counted_bytes: f64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    /// With the answer as a list of targets.
    pub(crate) pairs_p50_ns: u64,
}

/// Measures an index in a process that had `before` bytes in use without it: a third of the lookups each of whole
/// conversations, of such that diverge, and of new ones behind a system prompt, in random order.
#[expect(clippy::cast_precision_loss, reason = "it is printed")]
pub(crate) fn measure(load: &IndexLoad, before: u64) -> IndexMeasurement {
    let stats = load.index.stats();
    let grown = used().saturating_sub(before);
    let count = (HASHES / load.shape.depth as usize).clamp(300, 30_000);
    let queries = Queries::generate(load, count);
    let space = load.index.namespace_key(&load.namespace);
    let mut matches = Matches::default();
    let mut native = latencies(&queries, |chain| {
        load.index
            .lookup_into(space, chain, Moment::START, &mut matches);
        matches.best()
    });
    let mut pairs = latencies(&queries, |chain| {
        let overlaps = load.index.lookup(&load.namespace, chain, Moment::START);
        overlaps
            .iter()
            .map(|overlap| overlap.blocks.total())
            .max()
            .unwrap_or(0)
    });
    IndexMeasurement {
        targets: load.shape.targets,
        memberships: stats.memberships,
        distinct: stats.distinct,
        process_bytes: grown as f64 / stats.memberships as f64,
        counted_bytes: stats.bytes as f64 / stats.memberships as f64,
        p50_ns: quantile(&mut native, 50),
        p99_ns: quantile(&mut native, 99),
        pairs_p50_ns: quantile(&mut pairs, 50),
    }
}

/// Prompts to look up, all of one length.
#[derive(Debug)]
struct Queries {
    /// One after the other, in one piece, which goes back to the system.
    hashes: Vec<SequenceHash>,
    depth: usize,
    /// Blocks of each that its best holder has.
    best: Vec<u32>,
}

impl Queries {
    fn generate(load: &IndexLoad, count: usize) -> Self {
        let depth = load.shape.depth as usize;
        let mut all = Self {
            hashes: Vec::with_capacity(depth * count),
            depth,
            best: Vec::with_capacity(count),
        };
        for number in 0..count {
            let kind = [
                QueryKind::Whole,
                QueryKind::Diverging,
                QueryKind::SystemPrompt,
            ][number % 3];
            let Query { chain, best } = load.query(number as u64, kind);
            all.hashes.extend(chain);
            all.best.push(best);
        }
        all
    }

    fn iter(&self) -> impl Iterator<Item = (&[SequenceHash], u32)> {
        self.hashes
            .chunks(self.depth)
            .zip(self.best.iter().copied())
    }
}

/// Nanoseconds of each lookup, those of reading the clock among them.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn latencies(queries: &Queries, mut look_up: impl FnMut(&[SequenceHash]) -> u32) -> Vec<u64> {
    let mut all = Vec::with_capacity(queries.best.len() * ROUNDS);
    for round in 0..=ROUNDS {
        for (chain, best) in queries.iter() {
            // A prompt has just been hashed when it is looked up.
            black_box(chain.iter().fold(0, |all, hash| all ^ hash.0));
            let started = Instant::now();
            let found = look_up(chain);
            let took = started.elapsed();
            assert_eq!(
                found, best,
                "the answer is wrong, so its speed means nothing"
            );
            if round > 0 {
                all.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
        }
    }
    all
}

fn quantile(of: &mut [u64], percent: usize) -> u64 {
    let at = of.len() * percent / 100;
    *of.select_nth_unstable(at).1
}

/// Memory of this process that is in use, in bytes; 0 where the system does not say.
pub(crate) fn used() -> u64 {
    resident_bytes().unwrap_or(0)
}
