//! The router's own settings and the limits of its process.

use std::{process::Command, time::Duration};

use contract_id::contract;
use serde_json::json;
use test_programs::limit;

use super::look::{DoctorRun, doctor, engine, look_at, look_with, write};

#[test]
#[contract("G28")]
fn all_clients_are_served_without_a_key() {
    let engine = engine(&[]);
    let fix = "require a key (WARMROUTE_API_KEY or --api-key-file FILE), or set server.listen: \"127.0.0.1:8080\"";
    let open = "server: {listen: \"0.0.0.0:8080\", insecure_open: true}";
    let dir = tempfile::tempdir().expect("a directory");
    let file = write(
        dir.path(),
        "open.yaml",
        &format!(
            "{open}\nworkers: [{{name: w1, url: \"{}\"}}]\n",
            engine.url()
        ),
    );
    doctor(&["-c", &file]).warns("router", "listener_exposed", fix, &[]);
    let key = write(dir.path(), "key", "secret\n");
    doctor(&["-c", &file, "--api-key-file", &key]).green();
}

#[test]
#[contract("S80")]
fn the_key_of_clients_is_in_the_command_line() {
    let engine = engine(&[]);
    let fix = "put it into the variable WARMROUTE_API_KEY, or into a file for --api-key-file, in place of --api-key";
    look_at(&engine, &["--api-key", "secret"]).warns("router", "key_in_arguments", fix, &[]);
}

#[test]
#[contract("G28")]
fn fewer_open_files_than_clients_need() {
    let engine = engine(&[]);
    let worker = format!("w1={}", engine.url());
    let dir = tempfile::tempdir().expect("a directory");
    let file = write(
        dir.path(),
        "many.yaml",
        "server: {max_connections: 10000}\n",
    );
    let program = env!("CARGO_BIN_EXE_warmroute");
    let args = [
        "-c",
        "ulimit -n 1024 && exec \"$@\"",
        "sh",
        program,
        "doctor",
        "--json",
        "-c",
        &file,
        "-w",
        &worker,
    ];
    let ended = limit::output(Command::new("sh").args(args), Duration::from_secs(120));
    let report = serde_json::from_slice(&ended.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&ended.stderr)));
    let seen = DoctorRun {
        code: ended.status.code(),
        report,
    };
    let fix = "raise the limit (ulimit -n {needed}), or set server.max_connections: {fitting}";
    let check = seen.fails(
        &["router"],
        "limits_fd",
        fix,
        &[("needed", "20512"), ("fitting", "256")],
    );
    assert_eq!(
        (&check["found"], &check["expected"]),
        (&json!("1024"), &json!("20512"))
    );
}

#[test]
#[contract("G28")]
fn a_time_limit_makes_another_one_pointless() {
    let engine = engine(&[]);
    let fix = "set {short}: {than} or less, or {long}: {is} or more";
    for (sections, [short, than, long, is]) in [
        (
            "request: {stream_idle_timeout: 2h}",
            [
                "request.stream_idle_timeout",
                "3600s",
                "request.stream_max_duration",
                "7200s",
            ],
        ),
        (
            "request: {connect_timeout: 20s, timeout: 10s}",
            ["request.connect_timeout", "10s", "request.timeout", "20s"],
        ),
    ] {
        let values = [("short", short), ("than", than), ("long", long), ("is", is)];
        look_with(&engine, "", sections).fails(&["router"], "timers", fix, &values);
    }
    let values = [
        ("short", "health_checks.timeout"),
        ("than", "5s"),
        ("long", "health_checks.interval"),
        ("is", "10s"),
    ];
    look_with(&engine, "", "health_checks: {timeout: 10s, interval: 5s}")
        .warns("router", "timers", fix, &values);
}

#[test]
#[contract("G28")]
fn health_checks_of_workers_are_off() {
    let seen = look_with(&engine(&[]), "", "health_checks: {enabled: false}");
    seen.warns("router", "timers", "set health_checks.enabled: true", &[]);
}
