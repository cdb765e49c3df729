//! The medium of a publisher's blocks.

use kv_blocks::Tier;

use super::BlockLocation;

/// The meaning of a medium's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A known name, or none, which means the device.
    Known(Tier),
    /// An unknown name: never credited as the device, counted as disk.
    Unlisted,
}

impl Medium {
    /// Parses a medium's name, in any case, with the locality beside it (storage may be remote).
    ///
    /// ```
    /// use kv_blocks::Tier;
    /// use kv_events::vllm::Medium;
    ///
    /// assert_eq!(Medium::parse(Some("CPU_PINNED"), None), Medium::Known(Tier::Host));
    /// assert_eq!(Medium::parse(None, None), Medium::Known(Tier::Device));
    /// assert_eq!(Medium::parse(Some("punched cards"), None).tier(), Tier::Disk);
    /// ```
    pub fn parse(name: Option<&str>, locality: Option<&str>) -> Self {
        let Some(name) = name else {
            return Self::Known(Tier::Device);
        };
        let is = |aliases: &[&str]| aliases.iter().any(|alias| alias.eq_ignore_ascii_case(name));
        Self::Known(if is(&["gpu", "device", "npu", "hbm"]) {
            Tier::Device
        } else if is(&["cpu", "cpu_pinned", "cpu_tier1", "host", "dram"]) {
            Tier::Host
        } else if is(&[
            "disk",
            "storage",
            "fs",
            "nvme",
            "cpu_tier2",
            "shared_storage",
            "ssd",
            "3fs",
            "nfs",
            "dfs",
        ]) {
            let far = locality.is_some_and(|locality| locality.eq_ignore_ascii_case("remote"));
            if far { Tier::Remote } else { Tier::Disk }
        } else if is(&["obj", "object_store", "external", "remote"]) {
            Tier::Remote
        } else {
            return Self::Unlisted;
        })
    }

    /// Returns the medium of a place.
    pub fn of(location: &BlockLocation) -> Self {
        Self::parse(location.medium.as_deref(), location.locality.as_deref())
    }

    /// Returns the tier of the blocks.
    pub fn tier(self) -> Tier {
        match self {
            Self::Known(tier) => tier,
            Self::Unlisted => Tier::Disk,
        }
    }
}
