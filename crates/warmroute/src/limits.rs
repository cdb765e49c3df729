//! Limits of this process.

use std::num::NonZeroU32;

use doctor::FileLimit;

/// Descriptors kept for workers, events, the admin listener and logs.
const RESERVED: u64 = 512;
/// More client connections than this are never accepted by default.
const MOST: u64 = 10_000;
/// Assumed where the system does not tell.
const USUAL: u64 = 1024;

/// Client connections to accept at once: a connection costs up to two descriptors, its own and its worker's.
pub(crate) fn max_connections() -> usize {
    usize::try_from(fitting(open_files_here().unwrap_or(USUAL))).unwrap_or(64)
}

/// What the limit of open files allows, and what as many clients as would be accepted need of it. `configured` is
/// `server.max_connections`. `None` where the system does not tell.
pub(crate) fn files(configured: Option<NonZeroU32>) -> Option<FileLimit> {
    let limit = open_files_here()?;
    let fitting = fitting(limit);
    let accepted = configured.map_or(fitting, |most| u64::from(most.get()));
    Some(FileLimit {
        limit,
        needed: RESERVED + 2 * accepted,
        fitting_connections: usize::try_from(fitting).unwrap_or(64),
    })
}

fn fitting(open_files: u64) -> u64 {
    (open_files.saturating_sub(RESERVED) / 2).clamp(64, MOST)
}

fn open_files_here() -> Option<u64> {
    open_files(&std::fs::read_to_string("/proc/self/limits").unwrap_or_default())
}

/// The soft limit of open files in the text of `/proc/self/limits`.
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_of_open_files_is_read() {
        let text = "Limit  Soft Limit  Hard Limit  Units\nMax open files            20000                20000                files\n";
        assert_eq!(open_files(text), Some(20_000));
        assert_eq!(open_files("Max open files  unlimited unlimited files"), None);
        assert!(max_connections() >= 64);
    }
}
