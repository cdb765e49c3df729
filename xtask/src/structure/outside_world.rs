//! Calls of the operating system that belong in the crates `runtime` and `net`.
//!
//! A simulation replaces what these crates do, so a call beside them would leave simulated time.

use super::source_file::SourceFile;
use crate::rust_tokens::SourceToken;

/// The crates that make the calls for all others; and `test-programs`, which serves tests alone.
const CALLERS: [&str; 3] = ["runtime", "net", "test-programs"];
/// The ends of the calls' paths.
const CALLS: [[&str; 2]; 12] = [
    ["tokio", "spawn"],
    ["task", "spawn"],
    ["task", "spawn_blocking"],
    ["thread", "spawn"],
    ["thread", "Builder"],
    ["RandomState", "new"],
    ["SystemTime", "now"],
    ["TcpStream", "connect"],
    ["TcpListener", "bind"],
    ["UdpSocket", "bind"],
    ["UnixStream", "connect"],
    ["UnixListener", "bind"],
];

/// Returns the calls outside tests, as `path:line call`.
pub(super) fn calls(files: &[SourceFile]) -> Vec<String> {
    let others = files
        .iter()
        .filter(|file| !CALLERS.contains(&file.crate_name()));
    others.flat_map(calls_in).collect()
}

fn calls_in(file: &SourceFile) -> impl Iterator<Item = String> {
    let paths = file.tokens.windows(4).enumerate();
    paths.filter_map(move |(at, tokens)| {
        let [of, call] = called(tokens)?;
        let line = tokens.first()?.line;
        (!file.is_test(at)).then(|| format!("{}:{line} {of}::{call}", file.path))
    })
}

fn called(tokens: &[SourceToken]) -> Option<[&'static str; 2]> {
    let [of, colon, second_colon, call] = tokens else {
        return None;
    };
    let is_path = colon.is_sign(':') && second_colon.is_sign(':');
    CALLS
        .into_iter()
        .find(|path| is_path && of.word() == Some(path[0]) && call.word() == Some(path[1]))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{structure::source_file::source_files, tests_in_sources};

    #[test]
    fn a_call_is_found_in_code_and_not_in_tests_or_in_the_crates_that_make_it() {
        let text = "fn a() {\n    tokio::spawn(b());\n}\n#[cfg(test)] mod tests { fn c() { thread::spawn(d) } }";
        let files = [
            "crates/gateway/src/a.rs",
            "crates/runtime/src/a.rs",
            "python/src/a.rs",
        ]
        .map(|path| SourceFile::new(path, text));
        assert_eq!(
            calls(&files),
            [
                "crates/gateway/src/a.rs:2 tokio::spawn",
                "python/src/a.rs:2 tokio::spawn"
            ]
        );
    }

    #[test]
    fn the_product_reaches_the_outside_world_through_two_crates() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let sources = tests_in_sources::sources(&root).expect("the repository's sources");
        let found = calls(&source_files(&sources));
        assert!(
            found.is_empty(),
            "use `runtime` or `net` instead:\n{}",
            found.join("\n")
        );
    }
}
