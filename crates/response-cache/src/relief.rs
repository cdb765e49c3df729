//! What the cache does where the process is short of memory.

/// How short it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relief {
    /// It is not.
    #[default]
    Nothing,
    /// What is kept in memory shrinks to half of what it may be.
    Shrink,
    /// The same, and nothing more is taken, for any store.
    StopWrites,
}
