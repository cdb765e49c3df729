//! The cache's reaction to memory pressure.

/// The level of relief.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relief {
    /// None.
    #[default]
    Nothing,
    /// Memory shrinks to half of its bound.
    Shrink,
    /// Memory shrinks to half, and no store accepts new entries.
    StopWrites,
}
