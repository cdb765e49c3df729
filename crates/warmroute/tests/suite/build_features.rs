//! The documented build command.

use std::{path::Path, process::Command, time::Duration};

use contract_id::contract;
use test_programs::limit;

/// The packages that `cargo build` with these arguments compiles in the root directory.
fn packages(arguments: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["tree", "--locked", "--offline", "--color", "never"])
        .args(["--edges", "normal,build", "--format", "{p} {f}"])
        .args(arguments)
        .current_dir(root);
    let output = limit::output(&mut command, Duration::from_secs(60));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).expect("names of packages are text")
}

#[test]
#[contract("CH22")]
fn the_documented_build_command_builds_the_program_that_the_tests_run() {
    let documented = packages(&["--features", "redis-cache,s3-cache"]);
    assert!(documented.starts_with("warmroute "), "{documented}");
    // The same packages with the same features: what it builds is this very program.
    assert_eq!(documented, packages(&[]));
    let without = packages(&["--no-default-features"]);
    for package in ["opentelemetry-proto v", "redis v", "object_store v"] {
        assert!(documented.contains(package), "{package}");
        assert!(!without.contains(package), "{package} is optional");
    }
}
