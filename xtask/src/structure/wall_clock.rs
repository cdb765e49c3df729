//! Wall-clock reads of the parts that keep replicas in agreement.
//!
//! A wall clock jumps: by hand, by NTP, with a virtual machine. Presence, ownership, locks and the
//! expiry of load go by the monotonic clock of a process or by the clock of the NATS server.

use super::source_file::SourceFile;

/// The parts, by the beginning of their files' paths.
const PARTS: [&str; 8] = [
    "crates/event-log/",
    "crates/kv-index/",
    "crates/nats-client/",
    "crates/registrations/",
    "crates/replicas/",
    "crates/routing/",
    "crates/warmroute/src/index_snapshot/",
    "crates/warmroute/src/wire_up/",
];
/// The functions of `net::Clock` and `runtime` that read the wall clock.
const READS: [&str; 5] = ["system_time", "unix_ms", "unix_s", "wall", "wall_at"];

/// Returns the reads outside tests, as `path function`.
pub(super) fn reads(files: &[SourceFile]) -> Vec<String> {
    let of_parts = files
        .iter()
        .filter(|file| PARTS.iter().any(|part| file.path.starts_with(part)));
    of_parts.flat_map(reads_in).collect()
}

fn reads_in(file: &SourceFile) -> impl Iterator<Item = String> {
    let calls = file.tokens.windows(2).enumerate();
    calls.filter_map(move |(at, tokens)| {
        let [name, bracket] = tokens else {
            return None;
        };
        let read = READS.into_iter().find(|read| name.word() == Some(read))?;
        let is_call = bracket.is_sign('(') && !file.is_test(at);
        is_call.then(|| format!("{} {read}", file.path))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{structure::source_file::source_files, tests_in_sources};

    #[test]
    fn a_read_is_found_in_code_of_these_parts_and_not_in_tests() {
        let text =
            "fn a(c: Clock) { c.wall(); }\n#[cfg(test)] mod tests { fn b() { c.unix_ms() } }";
        let files = ["crates/replicas/src/a.rs", "crates/gateway/src/a.rs"]
            .map(|path| SourceFile::new(path, text));
        assert_eq!(reads(&files), ["crates/replicas/src/a.rs wall"]);
    }

    #[test]
    fn a_jump_of_the_wall_clock_changes_no_lease_lock_or_load() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let sources = tests_in_sources::sources(&root).expect("the repository's sources");
        // Each of these is the time of a snapshot, which is displayed and never compared.
        let displayed = [
            "crates/event-log/src/snapshot_task.rs unix_ms",
            "crates/warmroute/src/index_snapshot/mod.rs unix_ms",
            "crates/warmroute/src/index_snapshot/mod.rs unix_ms",
            "crates/warmroute/src/index_snapshot/telemetry.rs unix_ms",
        ];
        assert_eq!(
            reads(&source_files(&sources)),
            displayed,
            "compare moments of the monotonic clock, or times of the server"
        );
    }
}
