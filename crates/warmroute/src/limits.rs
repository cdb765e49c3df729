//! Limits of this process.

use std::num::NonZeroU32;

use doctor::FileLimit;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors reserved for workers, events, the admin listener and logs.
const RESERVED: u64 = 512;
/// Most client connections accepted by default.
const MOST: u64 = 10_000;
/// Limit requested if the system allows an unlimited number: far more than needed for the default
/// connections, their workers' connections, and engines' connections to bound event sockets.
const ENOUGH: u64 = 65_536;

/// Raises the soft limit of open files towards the hard one. `configured` is
/// `server.max_connections`. The usual soft limit of 1024 exists for programs that cannot handle
/// more.
pub(crate) fn raise_open_files(configured: Option<NonZeroU32>) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = configured
        .map_or(0, |most| RESERVED + 2 * u64::from(most.get()))
        .max(ENOUGH);
    let wanted = maximum.map_or(wanted, |hard| wanted.min(hard));
    if current.is_none_or(|soft| soft >= wanted) {
        return;
    }
    if let Err(error) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(wanted),
            maximum,
        },
    ) {
        tracing::warn!(%error, wanted, "the limit of open files could not be raised (ulimit -n)");
    }
}

/// Keeps keys and prompts out of core files: the memory of this process is written to none.
pub(crate) fn forbid_core_files() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "core files could not be switched off (ulimit -c 0)");
    }
}

/// Returns the number of client connections to accept at once: a connection costs up to two
/// descriptors, its own and its worker's.
pub(crate) fn max_connections() -> usize {
    usize::try_from(fitting(open_files())).unwrap_or(64)
}

/// Returns the limit of open files, and the need of as many clients as would be accepted.
/// `configured` is `server.max_connections`.
pub(crate) fn files(configured: Option<NonZeroU32>) -> FileLimit {
    let limit = open_files();
    let fitting = fitting(limit);
    let accepted = configured.map_or(fitting, |most| u64::from(most.get()));
    FileLimit {
        limit,
        needed: RESERVED + 2 * accepted,
        fitting_connections: usize::try_from(fitting).unwrap_or(64),
    }
}

fn fitting(open_files: u64) -> u64 {
    (open_files.saturating_sub(RESERVED) / 2).clamp(64, MOST)
}

/// Returns the soft limit of open files.
fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        assert_eq!(
            (fitting(256), fitting(1024), fitting(20_512)),
            (64, 256, 10_000)
        );
        assert_eq!(fitting(u64::MAX), 10_000);
        assert!(max_connections() >= 64);
    }
}
