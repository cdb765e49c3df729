//! Memory budget of the process, if the configuration leaves it to the system.

use std::path::{Component, Path, PathBuf};

use config::MemoryBudget;

/// Share of the available memory that the process may use, in percent: the system needs some for
/// its files and sockets, and a control group that counts them would kill the process before it
/// reached the limit.
const SHARE_PERCENT: u64 = 90;

/// Mount point of control groups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Returns the budget in bytes; `None`: unlimited.
pub(crate) fn bytes(configured: MemoryBudget) -> Option<u64> {
    match configured {
        MemoryBudget::Off => None,
        MemoryBudget::Bytes(bytes) => Some(bytes),
        MemoryBudget::Auto => share_of(available()?),
    }
}

fn share_of(available: u64) -> Option<u64> {
    Some(available / 100 * SHARE_PERCENT).filter(|bytes| *bytes > 0)
}

/// Returns the memory available to the process: that of the machine, or the limit of its control
/// group. `None` if the system does not report it.
fn available() -> Option<u64> {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let groups = group_limit(&text("/proc/self/cgroup"), Path::new(CGROUPS));
    groups
        .into_iter()
        .chain(machine(&text("/proc/meminfo")))
        .min()
}

/// Returns `MemTotal` from the text of `/proc/meminfo`, in bytes.
fn machine(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the lowest limit of the process's control groups, of either version, and of their
/// ancestors. `groups` is the text of `/proc/self/cgroup`.
fn group_limit(groups: &str, mounted: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        match controllers {
            "" => least(mounted, path, "memory.max"),
            all if all.split(',').any(|one| one == "memory") => {
                least(&mounted.join("memory"), path, "memory.limit_in_bytes")
            }
            _ => None,
        }
    });
    limits.min()
}

/// Returns the lowest number in the files of this name from the group upwards. If the group is not
/// visible, as in a container, the mounted one is used.
fn least(mounted: &Path, group: &str, file: &str) -> Option<u64> {
    let normal = Path::new(group)
        .components()
        .filter(|part| matches!(part, Component::Normal(_)));
    let group: PathBuf = normal.collect();
    let ancestors = group
        .ancestors()
        .map(|ancestor| mounted.join(ancestor).join(file));
    // `max`, and the number that stands for it in version 1, are more than any machine has.
    let number = |path: PathBuf| {
        std::fs::read_to_string(path)
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    ancestors.filter_map(number).min()
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn groups(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    #[contract("F75")]
    fn the_least_limit_of_the_control_groups_counts() {
        let two = groups(&[
            ("a/memory.max", "4096\n"),
            ("a/b/memory.max", "max\n"),
            ("memory.max", "8192\n"),
        ]);
        assert_eq!(group_limit("0::/a/b\n", two.path()), Some(4096));
        assert_eq!(
            group_limit("0::/\n", two.path()),
            Some(8192),
            "in a container"
        );
        assert_eq!(group_limit("0::/../../unseen\n", two.path()), Some(8192));
        assert_eq!(
            group_limit("0::/\n", groups(&[("memory.max", "max\n")]).path()),
            None
        );
        let one = groups(&[("memory/docker/x/memory.limit_in_bytes", "1000\n")]);
        assert_eq!(
            group_limit("5:cpu:/docker/x\n4:memory:/docker/x\n", one.path()),
            Some(1000)
        );
        assert_eq!(group_limit("", one.path()), None);
    }

    #[test]
    #[contract("F75")]
    fn without_a_number_the_budget_is_a_share_of_what_there_is() {
        assert_eq!(
            machine("MemTotal:       16000 kB\nMemFree: 1 kB\n"),
            Some(16_384_000)
        );
        assert_eq!((share_of(1000), share_of(0)), (Some(900), None));
        assert_eq!(
            (bytes(MemoryBudget::Off), bytes(MemoryBudget::Bytes(7))),
            (None, Some(7))
        );
        assert!(bytes(MemoryBudget::Auto).is_some_and(|bytes| bytes > 64 << 20));
    }
}
