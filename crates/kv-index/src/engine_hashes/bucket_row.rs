//! One part of the index from engine hash to location: a row of buckets.

/// Bits of a digest in an entry.
pub(super) const PRINT_BITS: u32 = 18;
/// No entry: prints are never 0.
const EMPTY: u64 = 0;
const SLOTS: usize = 7;

/// Returns the print of an entry.
fn print(word: u64) -> u64 {
    word >> 46
}

/// One cache line.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    slots: [u64; SLOTS],
    /// Entries that found this bucket full and moved on, by the end of their print: most searches
    /// then end here. A saturated count stays so until the part is rebuilt.
    passed: [u8; 8],
}

impl Bucket {
    /// Returns the slots that match, a bit each: nearly always at most one, so the scan has no
    /// branches.
    fn which(&self, so: impl Fn(u64) -> bool) -> u32 {
        self.slots
            .iter()
            .rev()
            .fold(0, |bits, word| bits << 1 | u32::from(so(*word)))
    }

    fn has_passed(&self, print: u64) -> bool {
        self.passed[lane(print)] > 0
    }

    fn pass(&mut self, print: u64) {
        let passed = &mut self.passed[lane(print)];
        *passed = passed.saturating_add(1);
    }

    fn unpass(&mut self, print: u64) {
        let passed = &mut self.passed[lane(print)];
        *passed -= u8::from(*passed < u8::MAX);
    }
}

fn lane(print: u64) -> usize {
    usize::try_from(print % 8).expect("below 8")
}

/// A row of buckets, the first behind the last. At most seven eighths full: one entry in ten is not
/// in its own bucket.
#[derive(Debug, Default)]
pub(super) struct BucketRow {
    buckets: Box<[Bucket]>,
    pub(super) entries: u32,
}

impl BucketRow {
    fn home(&self, print: u64) -> usize {
        let home = (print * self.buckets.len() as u64) >> PRINT_BITS;
        usize::try_from(home).expect("less than the number of buckets")
    }

    /// Returns the first word of a print's own bucket; 0 without any bucket.
    pub(super) fn first_slot(&self, print: u64) -> u64 {
        self.buckets
            .get(self.home(print))
            .map_or(0, |bucket| bucket.slots[0])
    }

    /// Returns the first entry with a print that `accept` takes.
    pub(super) fn find(
        &self,
        print_sought: u64,
        mut accept: impl FnMut(u64) -> bool,
    ) -> Option<u64> {
        let mut at = self.home(print_sought);
        // At most once around.
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            let mut alike = bucket.which(|word| print(word) == print_sought);
            while alike != 0 {
                let word = bucket.slots[alike.trailing_zeros() as usize];
                if accept(word) {
                    return Some(word);
                }
                alike &= alike - 1;
            }
            if !bucket.has_passed(print_sought) {
                return None;
            }
            at = self.behind(at);
        }
        None
    }

    fn behind(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() {
            0
        } else {
            at + 1
        }
    }

    /// Makes room for some more entries than `entries`.
    pub(super) fn reserve(&mut self, entries: u64) {
        let buckets = usize::try_from(entries).map_or(0, |entries| entries * 8 / (SLOTS * 6));
        if buckets > self.buckets.len() {
            self.rebuild(buckets);
        }
    }

    pub(super) fn insert(&mut self, word: u64) {
        if self.entries as usize * 8 >= self.buckets.len() * SLOTS * 7 {
            self.rebuild(self.buckets.len() + self.buckets.len() / 2 + 1);
        }
        self.put(word);
        self.entries += 1;
    }

    fn put(&mut self, word: u64) {
        let mut at = self.home(print(word));
        loop {
            let bucket = &mut self.buckets[at];
            let free = bucket.which(|word| word == EMPTY);
            if free != 0 {
                bucket.slots[free.trailing_zeros() as usize] = word;
                return;
            }
            bucket.pass(print(word));
            at = self.behind(at);
        }
    }

    pub(super) fn remove(&mut self, word: u64) -> bool {
        if self.find(print(word), |other| other == word).is_none() {
            return false;
        }
        let mut at = self.home(print(word));
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(slot) = bucket.slots.iter_mut().find(|slot| **slot == word) {
                *slot = EMPTY;
                break;
            }
            bucket.unpass(print(word));
            at = self.behind(at);
        }
        self.entries -= 1;
        let buckets = self.buckets.len();
        if self.entries == 0 {
            *self = Self::default();
        } else if buckets > 8 && (self.entries as usize) < buckets * SLOTS * 2 / 5 {
            self.rebuild(buckets * 3 / 5);
        }
        true
    }

    fn rebuild(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::default(); buckets].into());
        for word in old
            .iter()
            .flat_map(|bucket| bucket.slots)
            .filter(|word| *word != EMPTY)
        {
            self.put(word);
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&*self.buckets) as u64
    }
}
