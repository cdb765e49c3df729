//! What a replica is to the others.

use std::fmt;

/// Identity of this process among the replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaIdentity {
    /// Drawn at random when the process starts: a restarted replica is another one.
    pub id: u64,
    /// Where operators reach its admin listener.
    pub address: String,
    /// Version of the program.
    pub program: &'static str,
    /// Digest of the settings that replicas must share.
    pub settings: u64,
}

/// An id in its written form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownId(pub(crate) u64);

impl fmt::Display for ShownId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
