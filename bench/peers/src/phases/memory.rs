//! Memory of the state, in bytes requested from the allocator.

use crate::{counting_allocator, index::Index, workload::Workload};

/// Number of changes converted to events at a time, so that few events are alive beside the index.
const AT_ONCE: usize = 64;

/// The memory of one index, in bytes.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Memory {
    /// Bytes of the empty index.
    pub(crate) empty_bytes: i64,
    /// Bytes that the state adds, including the writer's part.
    pub(crate) state_bytes: i64,
    /// Number of pairs of block and target in the state.
    pub(crate) memberships: usize,
    /// Number of distinct blocks in the state.
    pub(crate) distinct: usize,
}

impl Memory {
    /// Bytes per pair of block and target.
    pub(crate) fn per_membership(&self) -> f64 {
        self.state_bytes as f64 / self.memberships as f64
    }
}

/// Applies the whole workload. Only valid in a process that counts ([`counted::count`]) and had no
/// other index before: some free memory late.
pub(crate) fn memory<I: Index>(workload: &Workload) -> Memory {
    let changes = [workload.warm_changes(), workload.measured_changes()].concat();
    let before = counting_allocator::live_bytes();
    let (index, mut writer) = I::empty(workload.targets);
    let empty_bytes = counting_allocator::live_bytes() - before;
    for some in changes.chunks(AT_ONCE) {
        index.apply(&mut writer, &mut I::events(workload, some));
        index.settle(&mut writer);
    }
    let state_bytes = counting_allocator::live_bytes() - before - empty_bytes;
    drop((index, writer));
    Memory {
        empty_bytes,
        state_bytes,
        memberships: workload.memberships,
        distinct: workload.distinct,
    }
}
