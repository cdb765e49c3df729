//! Where a publisher says its blocks are.

use kv_blocks::Tier;

/// What a medium's name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A name that is known, or none at all, which means the device.
    Known(Tier),
    /// A name that is not: never credited as the device, weighs as disk.
    Unlisted,
}

impl Medium {
    /// Reads a medium's name, in any case, and the locality beside it (storage may be far away).
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
        Self::Known(if is(&["gpu", "device"]) {
            Tier::Device
        } else if is(&["cpu", "cpu_pinned", "cpu_tier1", "host"]) {
            Tier::Host
        } else if is(&[
            "disk",
            "storage",
            "fs",
            "nvme",
            "cpu_tier2",
            "shared_storage",
        ]) {
            let far = locality.is_some_and(|locality| locality.eq_ignore_ascii_case("remote"));
            if far { Tier::Remote } else { Tier::Disk }
        } else if is(&["obj", "object_store", "external", "remote"]) {
            Tier::Remote
        } else {
            return Self::Unlisted;
        })
    }

    /// The tier the blocks count in.
    pub fn tier(self) -> Tier {
        match self {
            Self::Known(tier) => tier,
            Self::Unlisted => Tier::Disk,
        }
    }
}
