//! All run hashes, by number and by run.

use super::run_hashes::RunHashes;

/// Number of the run hashes of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RunHashesRef {
    family: u32,
    sheet: u32,
}

/// All run hashes.
#[derive(Debug, Default)]
pub(super) struct RunHashTable {
    slots: Vec<Option<RunHashes>>,
    free: Vec<u32>,
    /// The run hashes of each run, by group.
    runs: Vec<Vec<RunHashesRef>>,
    /// Heap bytes of run hashes and lists.
    held_bytes: u64,
}

impl RunHashTable {
    pub(super) fn get(&self, number: u32) -> &RunHashes {
        self.slots[number as usize]
            .as_ref()
            .expect("whoever has the number knows the sheet is there")
    }

    /// Reads the memory that a search for a hash needs. For several run hashes first, their cache
    /// misses overlap.
    pub(super) fn touch(&self, number: u32, at: u32) {
        let line = self
            .slots
            .get(number as usize)
            .and_then(Option::as_ref)
            .map(|sheet| sheet.is_named(at));
        std::hint::black_box(line);
    }

    /// Changes run hashes and updates the byte count.
    pub(super) fn change<R>(&mut self, number: u32, change: impl FnOnce(&mut RunHashes) -> R) -> R {
        let sheet = self.slots[number as usize]
            .as_mut()
            .expect("whoever has the number knows the sheet is there");
        let before = sheet.bytes();
        let done = change(sheet);
        self.held_bytes = self.held_bytes + sheet.bytes() - before;
        done
    }

    /// Returns the hashes of a run in a group.
    pub(super) fn find(&self, run: u32, family: u32) -> Option<u32> {
        let filed = self.runs.get(run as usize)?;
        let place = filed
            .binary_search_by_key(&family, |filed| filed.family)
            .ok()?;
        Some(filed[place].sheet)
    }

    /// Returns all run hashes of a run.
    pub(super) fn of_run(&self, run: u32) -> impl Iterator<Item = u32> {
        self.runs
            .get(run as usize)
            .into_iter()
            .flatten()
            .map(|filed| filed.sheet)
    }

    /// Adds run hashes; the run has none of that group yet. Returns their number.
    pub(super) fn add(&mut self, sheet: RunHashes) -> u32 {
        let (run, family) = (sheet.run as usize, sheet.family);
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("there are fewer sheets than blocks")
        });
        self.held_bytes += sheet.bytes();
        self.slots[number as usize] = Some(sheet);
        if self.runs.len() <= run {
            self.runs.resize_with(run + 1, Vec::new);
        }
        self.change_list(run, |filed| {
            let place = filed.partition_point(|filed| filed.family < family);
            filed.reserve_exact(1);
            filed.insert(
                place,
                RunHashesRef {
                    family,
                    sheet: number,
                },
            );
        });
        number
    }

    pub(super) fn remove(&mut self, number: u32) -> RunHashes {
        let sheet = self.slots[number as usize]
            .take()
            .expect("whoever has the number knows the sheet is there");
        self.held_bytes -= sheet.bytes();
        self.free.push(number);
        self.change_list(sheet.run as usize, |filed| {
            filed.retain(|filed| filed.sheet != number);
            if filed.is_empty() {
                *filed = Vec::new();
            }
        });
        sheet
    }

    /// Returns the heap bytes.
    pub(super) fn bytes(&self) -> u64 {
        let lists = self.slots.capacity() * size_of::<Option<RunHashes>>()
            + self.free.capacity() * size_of::<u32>()
            + self.runs.capacity() * size_of::<Vec<RunHashesRef>>();
        lists as u64 + self.held_bytes
    }

    fn change_list(&mut self, run: usize, change: impl FnOnce(&mut Vec<RunHashesRef>)) {
        let filed = &mut self.runs[run];
        let before = filed.capacity() * size_of::<RunHashesRef>();
        change(filed);
        self.held_bytes =
            self.held_bytes + (filed.capacity() * size_of::<RunHashesRef>()) as u64 - before as u64;
    }
}
