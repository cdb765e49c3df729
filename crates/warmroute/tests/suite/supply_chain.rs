//! What the program is built from, and how.

use std::{env, fs, os::unix::fs::PermissionsExt, process::Command};

use contract_id::contract;

const LOCK: &str = include_str!("../../../../Cargo.lock");
const MANIFEST: &str = include_str!("../../../../Cargo.toml");
const EXTENSION: &str = include_str!("../../../../python/Cargo.toml");
const INDEX: &str = include_str!("../../../kv-index/Cargo.toml");
const C_LIBRARY: &str = include_str!("../../../warmroute-publisher/Cargo.toml");

/// Least versions: those before have advisories.
const LEAST: &[(&str, [u64; 3])] = &[
    ("h2", [0, 4, 18]),
    ("hyper", [1, 11, 0]),
    ("bytes", [1, 11, 1]),
    ("rustls", [0, 23, 18]),
    ("rustls-webpki", [0, 103, 13]),
    ("tracing-subscriber", [0, 3, 20]),
    ("time", [0, 3, 47]),
    ("ring", [0, 17, 12]),
    ("tokio", [1, 44, 2]),
    ("lru", [0, 18, 2]),
    ("crossbeam-epoch", [0, 9, 20]),
    ("object_store", [0, 10, 2]),
    ("tungstenite", [0, 20, 1]),
    ("idna", [1, 0, 3]),
    ("async-nats", [0, 29, 0]),
];
const UNWANTED: &[&str] = &["rustls-pemfile", "serde_yml", "yaml-rust"];

/// Names and versions of all packages.
fn packages() -> impl Iterator<Item = (&'static str, &'static str)> {
    LOCK.split("[[package]]").skip(1).map(|package| {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key));
            line.expect("the key").trim_matches('"')
        };
        (value("name = "), value("version = "))
    })
}

fn numbers(version: &str) -> Vec<u64> {
    let version = version.split(['-', '+']).next().unwrap_or(version);
    let parsed = version.split('.').map(|number| number.parse());
    parsed.map(|it| it.expect("a number")).collect()
}

#[test]
#[contract("S73")]
fn no_dependency_is_older_than_its_last_advisory() {
    assert!(packages().count() > 200);
    for (name, version) in packages() {
        let least = LEAST.iter().find(|(known, _)| *known == name);
        if let Some((_, least)) = least {
            assert!(numbers(version) >= least.to_vec(), "{name} {version}");
        }
        assert!(!UNWANTED.contains(&name), "{name} is not to be used");
    }
}

#[test]
#[contract("S77")]
fn a_panic_unwinds_and_an_overflow_is_found_in_what_ships() {
    let profile = |name: &str| {
        let from = MANIFEST.split_once(&format!("\n[profile.{name}]\n"));
        let keys = from.expect("the profile").1;
        keys.split("\n[").next().unwrap_or(keys)
    };
    let release = profile("release");
    assert!(release.contains("panic = \"unwind\"") && release.contains("overflow-checks = true"));
    assert!(!release.contains("debug-assertions = true"));
    let shipped = profile("dist");
    assert!(shipped.contains("inherits = \"release\""));
    assert!(!shipped.contains("panic = \"abort\"") && !shipped.contains("overflow-checks = false"));
}

#[test]
#[contract("S75")]
fn unsafe_code_is_forbidden_in_all_crates_but_the_named_ones() {
    assert!(MANIFEST.contains("unsafe_code = \"forbid\""));
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut own = Vec::new();
    for entry in std::fs::read_dir(crates).expect("the crates") {
        let path = entry.expect("a crate").path().join("Cargo.toml");
        let Ok(manifest) = std::fs::read_to_string(&path) else {
            continue;
        };
        if !manifest.contains("[lints]\nworkspace = true") {
            own.push(path.parent().expect("a folder").to_owned());
        }
    }
    let mut names: Vec<_> = own
        .iter()
        .filter_map(|path| path.file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    // One file of the first has loom schedules; the second gets pointers from C, and is in no router.
    assert_eq!(names, ["kv-index", "warmroute-publisher"]);
    for manifest in [INDEX, C_LIBRARY] {
        assert!(manifest.contains("unsafe_code = \"deny\""));
    }
    let program = include_str!("../../Cargo.toml").split_once("\n[dev-dependencies]");
    assert!(
        !program
            .expect("the section")
            .0
            .contains("warmroute-publisher")
    );
    assert!(EXTENSION.contains("[lints]\nworkspace = true"));
}

/// A `cargo` whose `deny` is a script with the cases of this test.
fn check_advisories(cargo_deny: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let cargo = folder.path().join("cargo");
    fs::write(
        &cargo,
        format!("#!/bin/sh\ncase \"$*\" in\n{cargo_deny}\nesac\n"),
    )
    .expect("the script");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o700)).expect("its mode");
    let path = env::var_os("PATH").expect("a path");
    let path = env::join_paths(
        [folder.path().to_owned()]
            .into_iter()
            .chain(env::split_paths(&path)),
    );
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/long/check-advisories"
    );
    let output = Command::new(script)
        .env("PATH", path.expect("a path"))
        .output()
        .expect("the script runs");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

#[test]
#[contract("S74")]
fn advisories_that_could_not_be_checked_are_reported_as_not_run() {
    for (cargo_deny, code, said) in [
        (
            "*) exit 101;;",
            3,
            "advisories were NOT RUN: there is no cargo-deny",
        ),
        (
            "'deny --version') ;; *fetch*) echo no route >&2; exit 1;; *) exit 0;;",
            3,
            "advisories were NOT RUN: their database cannot be fetched: no route",
        ),
        (
            "'deny --version' | *fetch*) ;; *' advisories') exit 1;;",
            1,
            "",
        ),
        (
            "'deny --version' | *fetch*) ;; *' advisories') exit 4;;",
            1,
            "",
        ),
        (
            "'deny --version' | *fetch*) ;; *' advisories') exit 0;; *) exit 9;;",
            0,
            "",
        ),
    ] {
        let (status, output) = check_advisories(cargo_deny);
        assert_eq!(status, Some(code), "{cargo_deny}: {output}");
        assert!(
            output.starts_with(said) && output.is_empty() == said.is_empty(),
            "{output}"
        );
    }
}

const DAILY: &str = include_str!("../../../../.github/workflows/daily.yml");
const RELEASE: &str = include_str!("../../../../.github/workflows/release.yml");
const BUILD: &str = include_str!("../../../../deploy/release/build");
const BUILD_WHEEL: &str = include_str!("../../../../python/build-wheel");

#[test]
#[contract("S74")]
fn the_daily_workflow_checks_advisories_also_when_dependencies_change() {
    for part in [
        "schedule:\n    - cron: \"17 4 * * *\"\n",
        "paths: [Cargo.lock, \"**/Cargo.toml\", deny.toml,",
        "- run: cargo deny --locked check\n",
        "- run: cargo audit --deny warnings\n",
    ] {
        assert!(DAILY.contains(part), "{part}");
    }
}

#[test]
#[contract("S76")]
fn the_release_workflow_tests_and_adds_dependencies_checksums_and_signed_provenance() {
    for (file, part) in [
        (RELEASE, "./test --long"),
        (RELEASE, "needs: check"),
        (RELEASE, "uses: actions/attest-build-provenance@"),
        (RELEASE, "subject-path: ${{ runner.temp }}/files/*"),
        (BUILD, "cargo auditable build --profile dist --locked"),
        (BUILD, "cargo xtask sbom"),
        (BUILD, "sha256sum \"$name\" \"$name.cdx.json\""),
        (
            BUILD,
            "cargo auditable build --profile dist --locked --package warmroute-publisher",
        ),
        (BUILD, "sha256sum \"$library.tar.gz\""),
        (BUILD_WHEEL, "--profile dist"),
        (BUILD_WHEEL, "--zig --compatibility manylinux_2_28"),
        (BUILD_WHEEL, "--manifest-path python/Cargo.toml --locked"),
    ] {
        assert!(file.contains(part), "{part}");
    }
    let (_, wheels) = RELEASE.split_once("\n  wheels:\n").expect("the job");
    for part in [
        "needs: publish\n",
        "machine: [ubuntu-24.04, ubuntu-24.04-arm, macos-15, macos-15-intel]\n",
        "python/build-wheel --release",
        "bin/warmroute\" --version\n",
        "shasum --algorithm 256",
        "uses: actions/attest-build-provenance@",
        "subject-path: ${{ runner.temp }}/files/*",
    ] {
        assert!(wheels.contains(part), "{part}");
    }
}

/// What builds and tests the wheel is of one version.
#[test]
#[contract("S76")]
fn tools_of_the_python_package_are_pinned() {
    for list in [
        include_str!("../../../../python/requirements-build.txt"),
        include_str!("../../../../python/requirements-release.txt"),
        include_str!("../../../../python/requirements-test.txt"),
    ] {
        let mut named = list
            .lines()
            .filter(|line| !line.starts_with('#'))
            .peekable();
        assert!(named.peek().is_some());
        assert!(named.all(|line| line.contains("==")), "{list}");
    }
}

/// A tag may be moved to other code, a commit may not.
#[test]
#[contract("S76")]
fn workflows_name_the_commits_of_what_they_use() {
    for workflow in [DAILY, RELEASE] {
        let mut used = 0;
        for line in workflow.lines() {
            let Some((_, action)) = line.split_once("uses: ") else {
                continue;
            };
            let commit = action.split_once('@').map(|(_, commit)| commit);
            let commit = commit.and_then(|it| it.split(' ').next()).unwrap_or("");
            let hex = commit.bytes().all(|it| it.is_ascii_hexdigit());
            assert!(commit.len() == 40 && hex, "{action}");
            used += 1;
        }
        assert!(used > 0 && workflow.contains("\npermissions:"));
    }
}
