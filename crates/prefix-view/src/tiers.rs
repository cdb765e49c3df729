//! The tier into which an event puts a prefix.

use settings::{CheckedValue, Setting, ValueKind};

use crate::EventKind;

/// Tier of a prefix's KV on a backend; the better one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StorageTier {
    /// The accelerator's memory: a hit costs nothing.
    GpuHot,
    /// External storage: a hit has to be loaded first.
    StorageWarm,
}

/// Whether backends have a second tier (`storage_offloading`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offloading {
    /// No second tier: every held prefix is hot, and one that leaves the accelerator is lost.
    #[default]
    Off,
    /// A second tier exists.
    On {
        /// Meaning of a plain eviction, which does not name the destination: `true` for moved to
        /// storage, `false` for lost.
        treat_eviction_as_offload: bool,
    },
}

settings::section! {
    /// Section `kv_cache_index.storage_offloading`.
    #[derive(Debug)]
    struct OffloadingSection {
        /// Keep offloaded prefixes in the view, as a second tier.
        enabled: bool = "false", restart;
        /// Treat an evicted prefix as offloaded. `false`: it is removed from the view.
        treat_eviction_as_offload: bool = "true", restart;
    }
}

impl Setting for Offloading {
    const KIND: ValueKind = OffloadingSection::KIND;

    fn read(section: &CheckedValue) -> Option<Self> {
        let section = OffloadingSection::read(section)?;
        Some(if section.enabled {
            Self::On {
                treat_eviction_as_offload: section.treat_eviction_as_offload,
            }
        } else {
            Self::Off
        })
    }
}

/// Effect of an event on its backend's holding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The backend holds the prefix in this tier now.
    Hold(StorageTier),
    /// The backend does not hold the prefix any more.
    Drop,
}

impl Offloading {
    /// Returns the effect of an event. This is the one table of events and tiers, for every
    /// implementation of the view.
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
