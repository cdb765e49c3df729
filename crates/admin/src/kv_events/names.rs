//! What workers are called, also those that have just left.

use std::{collections::HashMap, fmt, sync::Arc};

use kv_blocks::{Target, WorkerId};

/// Names of workers that are not there any more, at most about; then they are forgotten.
const MOST: usize = 4096;

/// Who is there now.
pub(super) type WorkerNameSource = Box<dyn Fn() -> Vec<(WorkerId, Arc<str>)> + Send + Sync>;

/// Names as one subscriber gets to see them.
pub(super) struct SubscriberNames {
    source: WorkerNameSource,
    /// Only this worker is of interest.
    only: Option<Arc<str>>,
    known: HashMap<WorkerId, Arc<str>>,
}

impl SubscriberNames {
    pub(super) fn new(roster: WorkerNameSource, only: Option<Arc<str>>) -> Self {
        let mut names = Self {
            source: roster,
            only,
            known: HashMap::new(),
        };
        names.refresh();
        names
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.known.values().any(|known| **known == *name)
    }

    /// Takes in who has come. Those who left stay: the index lets go of what they held afterwards.
    pub(super) fn refresh(&mut self) {
        if self.known.len() > MOST {
            self.known.clear();
        }
        self.known.extend((self.source)());
    }

    /// The name of a target's worker, if it is of interest.
    pub(super) fn wanted(&self, target: Target) -> Option<&Arc<str>> {
        let name = self.known.get(&target.worker)?;
        self.only
            .as_ref()
            .is_none_or(|only| only == name)
            .then_some(name)
    }

    /// The same, after a look whether somebody has come.
    pub(super) fn find(&mut self, target: Target) -> Option<Arc<str>> {
        if !self.known.contains_key(&target.worker) {
            self.refresh();
        }
        self.wanted(target).cloned()
    }
}

impl fmt::Debug for SubscriberNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names")
            .field("only", &self.only)
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}
