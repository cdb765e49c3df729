//! The candidates that hold most of a prompt.

use std::cmp::Reverse;

use kv_blocks::Target;

use crate::{CacheSource, policy::rule::PolicyCandidate};

/// A target, and the leading tokens of the prompt that others may read from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) target: Target,
    pub(super) tokens: u32,
    /// Reads from it that are in progress.
    reads: u32,
}

impl Source {
    /// Returns whether it holds more, or as much and is read by fewer.
    fn is_better_than(&self, other: &Self) -> bool {
        (self.tokens, Reverse(self.reads)) > (other.tokens, Reverse(other.reads))
    }
}

/// The two best sources of each namespace: of these, one is another target than the candidate, and if
/// both are, the cheaper one can be read.
#[derive(Debug)]
pub(super) struct Sources(Vec<[Option<Source>; 2]>);

impl Sources {
    /// Finds the sources among `candidates`, whose prompts are numbered below `prompts`.
    ///
    /// A source is credited with what it announced alone: the blocks that it is merely expected to
    /// hold may not be there yet.
    pub(super) fn of(
        candidates: &[PolicyCandidate<'_>],
        prompts: usize,
        reads: impl Fn(Target) -> u32,
    ) -> Self {
        let mut best = vec![[None; 2]; prompts];
        for contender in candidates {
            let (surveyed, target) = (&contender.overlap, contender.target());
            let candidate = surveyed.candidate;
            let tokens = surveyed.warm.device.saturating_add(surveyed.warm.host);
            if !candidate.fetches || candidate.cache != CacheSource::Events || tokens == 0 {
                continue;
            }
            let source = Source {
                target,
                tokens,
                reads: reads(target),
            };
            let is_better =
                |known: Option<Source>| known.is_none_or(|known| source.is_better_than(&known));
            let [first, second] = &mut best[surveyed.prompt];
            if is_better(*first) {
                *second = first.replace(source);
            } else if is_better(*second) {
                *second = Some(source);
            }
        }
        Self(best)
    }

    /// Returns whether no target is a source.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|[first, _]| first.is_none())
    }

    /// Returns the sources for `target`, whose prompt has this number, the best one first.
    pub(super) fn others(&self, prompt: usize, target: Target) -> impl Iterator<Item = Source> {
        let known = self.0.get(prompt).into_iter().flatten().flatten();
        known.copied().filter(move |source| source.target != target)
    }
}
