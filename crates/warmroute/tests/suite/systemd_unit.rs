//! The unit for systemd in `deploy/systemd`.

use std::{process::Command, time::Duration};

use contract_id::contract;
use test_programs::limit;

use crate::harness::Program;

const UNIT: &str = include_str!("../../../../deploy/systemd/warmroute.service");
/// Where the unit expects the program.
const INSTALLED: &str = "/usr/local/bin/warmroute";

/// The values of a key, in their order.
fn values(key: &str) -> Vec<&'static str> {
    let lines = UNIT.lines().filter_map(|line| line.split_once('='));
    lines
        .filter(|(name, _)| *name == key)
        .map(|(_, value)| value)
        .collect()
}

#[test]
#[contract("S77")]
fn the_unit_starts_the_program_with_flags_that_it_has() {
    let [start] = values("ExecStart")[..] else {
        panic!("not one ExecStart");
    };
    let mut words = start.split(' ');
    assert_eq!(
        (words.next(), words.next()),
        (Some(INSTALLED), Some("serve"))
    );
    let help = Program::finish(&["serve", "--help"]).stdout;
    let flags: Vec<_> = words.filter(|word| word.starts_with('-')).collect();
    assert!(!flags.is_empty(), "{start}");
    for flag in flags {
        let has_flag = help
            .split(|letter: char| letter.is_whitespace() || letter == ',')
            .any(|word| word == flag);
        assert!(has_flag, "{flag} is no flag of serve");
    }
}

#[test]
#[contract("S77")]
fn the_unit_takes_away_root_capabilities_core_files_and_other_programs() {
    for (key, expected) in [
        ("DynamicUser", &["yes"][..]),
        ("ProtectSystem", &["strict"]),
        ("ProtectHome", &["yes"]),
        ("NoNewPrivileges", &["yes"]),
        ("CapabilityBoundingSet", &[""]),
        ("AmbientCapabilities", &[""]),
        ("NoExecPaths", &["/"]),
        ("RestrictAddressFamilies", &["AF_INET AF_INET6 AF_UNIX"]),
        ("RestrictNamespaces", &["yes"]),
        ("SystemCallFilter", &["@system-service", "~@privileged"]),
        ("LimitCORE", &["0"]),
        ("UMask", &["0077"]),
        // The exit codes of bad flags and bad configurations, and of a drain that cut streams.
        ("RestartPreventExitStatus", &["2 78"]),
        ("SuccessExitStatus", &["3"]),
    ] {
        assert_eq!(values(key), expected, "{key}");
    }
    // systemd must not kill the program within its drain.
    assert_eq!(values("TimeoutStopSec"), ["10min"]);
    let longest = config::ServerSection::default();
    assert!(longest.drain_grace + longest.drain_timeout < Duration::from_secs(600));
}

#[test]
#[contract("S77")]
fn systemd_knows_every_key_of_the_unit_and_rates_it_as_confined() {
    test_programs::require!(SystemdAnalyze);
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("warmroute.service");
    let unit = UNIT.replace(INSTALLED, env!("CARGO_BIN_EXE_warmroute"));
    std::fs::write(&path, unit).expect("the unit");
    let analyze = |args: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        command.args(args).arg(&path);
        let output = limit::output(&mut command, Duration::from_secs(60));
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    };
    let (verified, said) = analyze(&["verify"]);
    assert!(verified && !said.contains("warmroute.service:"), "{said}");
    // Tenths of its scale: 20 of 100 is the upper end of what it calls OK.
    let (confined, said) = analyze(&["security", "--offline=true", "--threshold=20"]);
    assert!(confined, "{said}");
}
