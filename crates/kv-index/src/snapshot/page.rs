//! Pages: pieces of a snapshot with a checksum each, and one checksum over all at the end.
//!
//! A page contains whole records. Its checksum is seeded with the page's offset in the file, so
//! that a page in another page's place does not pass. The length has a checksum of its own, because
//! it is used before the page is read.

use std::io::{self, Read, Write};

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::{SnapshotError, cursor::Cursor};

/// The first bytes of every snapshot.
pub(super) const MAGIC: [u8; 8] = *b"kv-index";
/// The only format version written and read. It changes with any change of the layout.
pub(super) const VERSION: u32 = 3;

/// Size at which a page is written: large enough that its head costs nothing, small enough to stay
/// in the processor's cache while it is checked and decoded.
const FULL_PAGE: usize = 64 << 10;
/// Length, check of the length, checksum of the rest.
const PAGE_HEAD: usize = 16;

/// Returns the low half of the seeded checksum of a page's length.
fn length_check(length: [u8; 4], at: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = xxh3_64_with_seed(&length, at).to_le_bytes();
    [a, b, c, d]
}

/// Writes records in pages.
pub(super) struct PageWriter<'w> {
    to: &'w mut dyn Write,
    /// Bounded: [`FULL_PAGE`] and one record.
    page: Vec<u8>,
    written: u64,
    all: Xxh3,
}

impl<'w> PageWriter<'w> {
    pub(super) fn new(to: &'w mut dyn Write) -> io::Result<Self> {
        let mut pages = Self {
            to,
            page: Vec::new(),
            written: 0,
            all: Xxh3::new(),
        };
        pages.put(&MAGIC)?;
        pages.put(&VERSION.to_le_bytes())?;
        Ok(pages)
    }

    /// Appends one record, the bytes that `encode` appends.
    pub(super) fn record(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        encode(&mut self.page)?;
        if self.page.len() >= FULL_PAGE {
            self.end_page()
        } else {
            Ok(())
        }
    }

    /// Writes the rest and the checksum over all. Returns the bytes of the whole snapshot.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        if !self.page.is_empty() {
            self.end_page()?;
        }
        let all = self.all.digest();
        self.put(&all.to_le_bytes())?;
        self.to.flush()?;
        Ok(self.written)
    }

    fn end_page(&mut self) -> io::Result<()> {
        let mut page = std::mem::take(&mut self.page);
        let length = u32::try_from(page.len())
            .map_err(|_| too_long("a record", page.len()))?
            .to_le_bytes();
        let check = length_check(length, self.written);
        let sum = xxh3_64_with_seed(&page, self.written);
        self.put(&length)?;
        self.put(&check)?;
        self.put(&sum.to_le_bytes())?;
        self.put(&page)?;
        page.clear();
        self.page = page;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        self.all.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// Returns the error for a length that does not fit its field.
pub(super) fn too_long(what: &str, length: usize) -> io::Error {
    let message = format!(
        "{what} for a snapshot has length {length}, expected at most {}",
        u32::MAX
    );
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// Reads pages and checks their checksums.
pub(super) struct PageReader<'r> {
    from: &'r mut dyn Read,
    /// Bounded: by `limit`, and by the bytes received.
    page: Vec<u8>,
    /// Bytes read so far.
    at: u64,
    limit: u64,
    all: Xxh3,
}

impl<'r> PageReader<'r> {
    /// Reads the first bytes. `limit`: maximum bytes of the whole snapshot.
    pub(super) fn open(from: &'r mut dyn Read, limit: u64) -> Result<Self, SnapshotError> {
        let mut pages = Self {
            from,
            page: Vec::new(),
            at: 0,
            limit,
            all: Xxh3::new(),
        };
        let found = pages.take()?;
        if found != MAGIC {
            return Err(SnapshotError::NotASnapshot { found });
        }
        let found = u32::from_le_bytes(pages.take()?);
        if found != VERSION {
            return Err(SnapshotError::Version {
                found,
                expected: VERSION,
            });
        }
        Ok(pages)
    }

    /// Returns the next page, which is not empty.
    pub(super) fn next(&mut self) -> Result<Cursor<'_>, SnapshotError> {
        let at = self.at;
        let [a, b, c, d, e, f, g, h, sum @ ..]: [u8; PAGE_HEAD] = self.take()?;
        let length = [a, b, c, d];
        if length_check(length, at) != [e, f, g, h] {
            return Err(damaged(
                at,
                "the length of a page does not match its checksum",
            ));
        }
        let length = u64::from(u32::from_le_bytes(length));
        if length == 0 {
            return Err(damaged(at, "a page of 0 bytes, expected at least 1"));
        }
        if self.at.saturating_add(length) > self.limit {
            return Err(SnapshotError::TooLarge { limit: self.limit });
        }
        self.page.clear();
        // Grows with the bytes received, whatever the length field has.
        let came = Read::take(&mut *self.from, length).read_to_end(&mut self.page)? as u64;
        if came < length {
            return Err(SnapshotError::Truncated { at: self.at + came });
        }
        if xxh3_64_with_seed(&self.page, at).to_le_bytes() != sum {
            return Err(damaged(at, "a page does not match its checksum"));
        }
        self.all.update(&self.page);
        let start = self.at;
        self.at += length;
        Ok(Cursor::new(&self.page, start))
    }

    /// Compares the checksum over all, which must be the end of the file. Returns the bytes of the
    /// whole snapshot.
    pub(super) fn finish(mut self) -> Result<u64, SnapshotError> {
        let (at, all) = (self.at, self.all.digest());
        if u64::from_le_bytes(self.take()?) != all {
            return Err(damaged(at, "the whole does not match its checksum"));
        }
        let mut behind = Vec::new();
        match Read::take(&mut *self.from, 1).read_to_end(&mut behind)? {
            0 => Ok(self.at),
            _ => Err(damaged(
                self.at,
                "bytes follow the last checksum, expected none",
            )),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut bytes = [0; N];
        self.from
            .read_exact(&mut bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => SnapshotError::Truncated { at: self.at },
                _ => SnapshotError::Io(error),
            })?;
        self.all.update(&bytes);
        self.at += N as u64;
        Ok(bytes)
    }

    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.page.capacity()
    }
}

fn damaged(at: u64, what: &str) -> SnapshotError {
    SnapshotError::Damaged {
        what: what.to_owned(),
        at,
    }
}
