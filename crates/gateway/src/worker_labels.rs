//! Worker names as label values: bounded, since workers come and go while counters stay.
//!
//! **Invariant**: at most [`MOST_WORKERS`] names, and [`OTHER`] beside them. A name keeps its
//! label: a series that changed its meaning or vanished would make rates wrong.

use std::{collections::HashSet, sync::Arc};

use foldhash::fast::RandomState;
use parking_lot::RwLock;

/// Most workers with a label of their own.
pub(crate) const MOST_WORKERS: usize = 1024;
/// The label of all other workers.
pub(crate) const OTHER: &str = "other";

/// The names that have a label.
#[derive(Debug, Default)]
pub(crate) struct WorkerLabels(RwLock<HashSet<Arc<str>, RandomState>>);

impl WorkerLabels {
    /// Returns a worker's label: its name, or [`OTHER`] if too many came before it.
    pub(crate) fn label(&self, name: &str) -> Arc<str> {
        if let Some(label) = self.0.read().get(name) {
            return Arc::clone(label);
        }
        let mut known = self.0.write();
        if let Some(label) = known.get(name) {
            return Arc::clone(label);
        }
        if known.len() >= MOST_WORKERS {
            return OTHER.into();
        }
        let label = Arc::<str>::from(name);
        known.insert(Arc::clone(&label));
        label
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("I7", "S68")]
    fn the_first_names_keep_their_labels_and_all_later_ones_share_one() {
        let labels = WorkerLabels::default();
        let name = |n: usize| format!("w{n}");
        for n in 0..MOST_WORKERS {
            assert_eq!(*labels.label(&name(n)), name(n));
        }
        for n in MOST_WORKERS..3 * MOST_WORKERS {
            assert_eq!(&*labels.label(&name(n)), OTHER);
        }
        assert_eq!(&*labels.label("w0"), "w0");
        assert_eq!(labels.0.read().len(), MOST_WORKERS);
    }
}
