//! The storage tiers of KV blocks.

/// A storage tier, fastest first: the order is the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// The accelerator's own memory.
    Device,
    /// Host memory.
    Host,
    /// Local disk, and any medium whose name is unknown (contract V20: it never counts as the
    /// device).
    Disk,
    /// Storage shared over a network.
    Remote,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::Disk, Self::Remote];

    /// Returns the name used in replies and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::Remote => "remote",
        }
    }

    /// Returns the position in [`Tier::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}
