//! Limits of this process.

/// Descriptors kept for workers, events, the admin listener and logs.
const RESERVED: u64 = 512;
/// More client connections than this are never accepted by default.
const MOST: u64 = 10_000;
/// Assumed where the system does not tell.
const USUAL: u64 = 1024;

/// Client connections to accept at once: a connection costs up to two descriptors, its own and its worker's.
pub(crate) fn max_connections() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let fits = (open_files(&limits).unwrap_or(USUAL).saturating_sub(RESERVED) / 2).clamp(64, MOST);
    usize::try_from(fits).unwrap_or(64)
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
