//! The router itself cannot open a connection; no worker is blamed.

use std::{collections::BTreeSet, process::Command, time::Duration};

use contract_id::contract;

use super::fleet::{CHAT, ScriptedFleet};
use crate::harness::{RawClient, RouterQueries as _, ScriptedReply, chat, eventually, json_reply};

/// Limits how many descriptors a process may open from now on.
fn limit_descriptors(pid: u32, limit: u64) {
    let status = Command::new("prlimit")
        .args(["--pid", &pid.to_string(), &format!("--nofile={limit}:")])
        .status();
    assert!(status.expect("prlimit is installed").success());
}

/// The lowest free descriptor number of a process, stable for a while.
fn lowest_free_descriptor(pid: u32) -> u64 {
    let free_now = || {
        std::thread::sleep(Duration::from_millis(50));
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs");
        let open: BTreeSet<u64> = open
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        (0..)
            .find(|number| !open.contains(number))
            .expect("some number is free")
    };
    // A health check in progress holds a descriptor.
    (0..5).map(|_| free_now()).min().expect("there are five")
}

fn states(scripted: &ScriptedFleet) -> Vec<String> {
    scripted
        .router
        .workers()
        .iter()
        .map(|worker| worker["state"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
#[contract("F77")]
fn a_router_without_descriptors_blames_no_worker_and_reports_it() {
    // Every request needs its own connection, and every worker is checked continuously.
    let reply = || {
        ScriptedReply::Cut(json_reply(
            "200 OK",
            "connection: close\r\n",
            r#"{"id":"fine"}"#,
        ))
    };
    let yaml = "health_checks: {interval: 1s, unhealthy_threshold: 1}\n";
    let scripted = ScriptedFleet::start(&[reply(), reply(), reply(), reply()], yaml);
    let pid = scripted.router.pid();
    let body = chat("m", "hi", 1).to_string();
    let mut clients: Vec<_> = (0..12)
        .map(|_| RawClient::connect(&scripted.router.data()))
        .collect();
    let mut admin = RawClient::connect(&scripted.router.admin());
    for client in &mut clients {
        client.send("POST", CHAT, &[], body.as_bytes());
        assert_eq!(client.reply().status, 200);
    }
    eventually("no descriptor to be left", || {
        limit_descriptors(pid, lowest_free_descriptor(pid));
        clients[0].send("POST", CHAT, &[], body.as_bytes());
        (clients[0].reply().status != 200).then_some(())
    });
    let sent = scripted.requests();
    for client in &mut clients {
        client.send("POST", CHAT, &[], body.as_bytes());
        let reply = client.reply();
        assert_eq!(
            (reply.status, reply.error_code().as_str()),
            (503, "overloaded"),
            "{}",
            reply.text()
        );
        assert!(reply.header("retry-after").is_some());
    }
    assert_eq!(scripted.requests(), sent);
    eventually("checks that could not be made", || {
        scripted
            .router
            .stderr()
            .contains("health check could not be made")
            .then_some(())
    });
    admin.send("GET", "/metrics", &[], b"");
    let metrics = admin.reply().text();
    let line = metrics
        .lines()
        .find(|line| line.starts_with("warmroute_local_failures_total"));
    let failures = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    assert!(
        failures.is_some_and(|failures| failures >= 12.0),
        "{line:?}"
    );
    assert!(
        !metrics.contains("warmroute_upstream_failures_total{"),
        "no worker failed"
    );
    limit_descriptors(pid, 4096);
    assert_eq!(states(&scripted), ["ready"; 4]);
    for client in &mut clients {
        client.send("POST", CHAT, &[], body.as_bytes());
        assert_eq!(client.reply().status, 200);
    }
    assert!(
        scripted.router.stderr().contains("Too many open files"),
        "{}",
        scripted.router.stderr()
    );
}
