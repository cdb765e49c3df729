//! Which tier an event puts a prefix into.

use crate::EventKind;

/// Where a backend keeps the KV of a prefix; the better one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StorageTier {
    /// In the accelerator's memory: a hit costs nothing.
    GpuHot,
    /// In external storage: a hit has to be loaded first.
    StorageWarm,
}

/// Whether backends keep a second tier (`storage_offloading`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offloading {
    /// They do not: whatever they hold is hot, and what leaves the accelerator is gone.
    #[default]
    Off,
    /// They do.
    On {
        /// What a plain eviction means, which does not say where the data went: moved to storage, or gone.
        treat_eviction_as_offload: bool,
    },
}

/// What an event does to what is known of its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The backend holds the prefix in this tier now.
    Hold(StorageTier),
    /// It does not hold it any more.
    Drop,
}

impl Offloading {
    /// The one table of events and tiers, for every form of the view.
    pub fn effect(self, kind: EventKind) -> Effect {
        match (kind, self) {
            (EventKind::Created | EventKind::Reloaded, _) => Effect::Hold(StorageTier::GpuHot),
            (EventKind::Purged, _) | (EventKind::Offloaded | EventKind::Evicted, Self::Off) => {
                Effect::Drop
            }
            (EventKind::Offloaded, Self::On { .. }) => Effect::Hold(StorageTier::StorageWarm),
            (
                EventKind::Evicted,
                Self::On {
                    treat_eviction_as_offload: true,
                },
            ) => Effect::Hold(StorageTier::StorageWarm),
            (
                EventKind::Evicted,
                Self::On {
                    treat_eviction_as_offload: false,
                },
            ) => Effect::Drop,
        }
    }
}
