//! Worker names, including those of recently removed workers.

use std::{collections::HashMap, fmt, sync::Arc};

use kv_blocks::{Target, WorkerId};

/// Approximate limit of names of removed workers; beyond it they are forgotten.
const MOST: usize = 4096;

/// Function that lists the present workers.
pub(super) type WorkerNameSource = Box<dyn Fn() -> Vec<(WorkerId, Arc<str>)> + Send + Sync>;

/// Worker names as one subscriber sees them.
pub(super) struct SubscriberNames {
    source: WorkerNameSource,
    /// If set, only this worker is of interest.
    only: Option<Arc<str>>,
    known: HashMap<WorkerId, Arc<str>>,
}

impl SubscriberNames {
    pub(super) fn new(source: WorkerNameSource, only: Option<Arc<str>>) -> Self {
        let mut names = Self {
            source,
            only,
            known: HashMap::new(),
        };
        names.refresh();
        names
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.known.values().any(|known| **known == *name)
    }

    /// Adds new workers. Removed ones stay: the index frees their blocks later.
    pub(super) fn refresh(&mut self) {
        if self.known.len() > MOST {
            self.known.clear();
        }
        self.known.extend((self.source)());
    }

    /// Returns the name of a target's worker, if it is of interest.
    pub(super) fn name_of(&self, target: Target) -> Option<&Arc<str>> {
        let name = self.known.get(&target.worker)?;
        self.only
            .as_ref()
            .is_none_or(|only| only == name)
            .then_some(name)
    }

    /// Returns the name as [`Self::name_of`] does, after a refresh if it is unknown.
    pub(super) fn find(&mut self, target: Target) -> Option<Arc<str>> {
        if !self.known.contains_key(&target.worker) {
            self.refresh();
        }
        self.name_of(target).cloned()
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
