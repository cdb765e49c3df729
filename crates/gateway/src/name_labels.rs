//! Names of workers and tenants as label values: bounded, since both come and go while counters
//! stay.
//!
//! **Invariant**: at most [`MOST_NAMES`] names, and [`OTHER`] beside them. A name keeps its
//! label: a series that changed its meaning or vanished would make rates wrong.

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock},
};

use foldhash::fast::RandomState;
use parking_lot::RwLock;

/// Most names with a label of their own.
pub(crate) const MOST_NAMES: usize = 1024;
/// The label of all other names.
pub(crate) const OTHER: &str = "other";
static OTHER_LABEL: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(OTHER));

/// The names that have a label.
#[derive(Debug, Default)]
pub(crate) struct NameLabels(RwLock<HashSet<Arc<str>, RandomState>>);

impl NameLabels {
    /// Returns the label of a name: the name, or [`OTHER`] if too many came before it.
    pub(crate) fn label(&self, name: &str) -> Arc<str> {
        {
            let known = self.0.read();
            if let Some(label) = known.get(name) {
                return Arc::clone(label);
            }
            // A full set stays as it is.
            if known.len() >= MOST_NAMES {
                return Arc::clone(&OTHER_LABEL);
            }
        }
        let mut known = self.0.write();
        if let Some(label) = known.get(name) {
            return Arc::clone(label);
        }
        if known.len() >= MOST_NAMES {
            return Arc::clone(&OTHER_LABEL);
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
        let labels = NameLabels::default();
        let name = |n: usize| format!("w{n}");
        for n in 0..MOST_NAMES {
            assert_eq!(*labels.label(&name(n)), name(n));
        }
        for n in MOST_NAMES..3 * MOST_NAMES {
            assert_eq!(&*labels.label(&name(n)), OTHER);
        }
        assert_eq!(&*labels.label("w0"), "w0");
        assert_eq!(labels.0.read().len(), MOST_NAMES);
    }
}
