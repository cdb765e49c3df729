//! All run hashes, by number and by run.

use super::run_hashes::RunHashes;
use crate::changed_runs::ChangedRuns;

/// Number of the run hashes of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RunHashesRef {
    group: u32,
    run_hashes: u32,
}

/// All run hashes.
#[derive(Debug, Default)]
pub(super) struct RunHashTable {
    slots: Vec<Option<RunHashes>>,
    free: Vec<u32>,
    /// The run hashes of each run, by group.
    runs: Vec<Vec<RunHashesRef>>,
    /// Heap bytes of run hashes and lists.
    run_hash_bytes: u64,
    /// Runs with other hashes than a save in progress has copied.
    pub(super) changed: ChangedRuns,
}

impl RunHashTable {
    pub(super) fn get(&self, number: u32) -> &RunHashes {
        self.slots[number as usize]
            .as_ref()
            .expect("the number belongs to stored run hashes")
    }

    /// Reads the memory that a search for a hash needs. For several run hashes first, their cache
    /// misses overlap.
    pub(super) fn touch(&self, number: u32, at: u32) {
        let line = self
            .slots
            .get(number as usize)
            .and_then(Option::as_ref)
            .map(|run_hashes| run_hashes.is_named(at));
        std::hint::black_box(line);
    }

    /// Changes run hashes and updates the byte count.
    pub(super) fn change<R>(&mut self, number: u32, change: impl FnOnce(&mut RunHashes) -> R) -> R {
        let run_hashes = self.slots[number as usize]
            .as_mut()
            .expect("the number belongs to stored run hashes");
        self.changed.mark(run_hashes.run);
        let before = run_hashes.bytes();
        let done = change(run_hashes);
        self.run_hash_bytes = self.run_hash_bytes + run_hashes.bytes() - before;
        done
    }

    /// Returns the hashes of a run in a group.
    pub(super) fn find(&self, run: u32, group: u32) -> Option<u32> {
        let filed = self.runs.get(run as usize)?;
        let index = filed
            .binary_search_by_key(&group, |filed| filed.group)
            .ok()?;
        Some(filed[index].run_hashes)
    }

    /// Returns all run hashes of a run.
    pub(super) fn of_run(&self, run: u32) -> impl Iterator<Item = u32> {
        self.runs
            .get(run as usize)
            .into_iter()
            .flatten()
            .map(|filed| filed.run_hashes)
    }

    /// Adds run hashes; the run has none of that group yet. Returns their number.
    pub(super) fn add(&mut self, run_hashes: RunHashes) -> u32 {
        self.changed.mark(run_hashes.run);
        let (run, group) = (run_hashes.run as usize, run_hashes.group);
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("there are fewer run hashes than blocks")
        });
        self.run_hash_bytes += run_hashes.bytes();
        self.slots[number as usize] = Some(run_hashes);
        if self.runs.len() <= run {
            self.runs.resize_with(run + 1, Vec::new);
        }
        self.change_list(run, |filed| {
            let index = filed.partition_point(|filed| filed.group < group);
            filed.reserve_exact(1);
            filed.insert(
                index,
                RunHashesRef {
                    group,
                    run_hashes: number,
                },
            );
        });
        number
    }

    pub(super) fn remove(&mut self, number: u32) -> RunHashes {
        let run_hashes = self.slots[number as usize]
            .take()
            .expect("the number belongs to stored run hashes");
        self.changed.mark(run_hashes.run);
        self.run_hash_bytes -= run_hashes.bytes();
        self.free.push(number);
        self.change_list(run_hashes.run as usize, |filed| {
            filed.retain(|filed| filed.run_hashes != number);
            if filed.is_empty() {
                *filed = Vec::new();
            }
        });
        run_hashes
    }

    /// Returns the heap bytes.
    pub(super) fn bytes(&self) -> u64 {
        let lists = self.slots.capacity() * size_of::<Option<RunHashes>>()
            + self.free.capacity() * size_of::<u32>()
            + self.runs.capacity() * size_of::<Vec<RunHashesRef>>();
        lists as u64 + self.run_hash_bytes
    }

    fn change_list(&mut self, run: usize, change: impl FnOnce(&mut Vec<RunHashesRef>)) {
        let filed = &mut self.runs[run];
        let before = filed.capacity() * size_of::<RunHashesRef>();
        change(filed);
        self.run_hash_bytes = self.run_hash_bytes
            + (filed.capacity() * size_of::<RunHashesRef>()) as u64
            - before as u64;
    }
}
