//! Discovered workers.

use std::{
    net::UdpSocket,
    sync::{Arc, Mutex},
};

use contract_id::contract;
use serde_json::json;

use super::configured::ConfiguredFleet;
use crate::harness::{Program, RouterQueries as _, eventually};

#[test]
#[contract("F85")]
fn workers_follow_their_file_and_an_empty_or_broken_list_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("engines.yaml");
    let yaml = format!("discovery: {{file: \"{}\"}}\n", list.display());
    let it = ConfiguredFleet::start(2, |_| yaml.clone(), &[]);
    assert!(it.states().is_empty(), "a missing file lists no worker");
    let urls = it.urls();
    std::fs::write(
        &list,
        format!("- {{name: a, url: \"{}\"}}\n- \"b={}\"\n", urls[0], urls[1]),
    )
    .unwrap();
    it.until_ready(&["a", "b"]);
    std::fs::write(
        &list,
        json!({"workers": [{"name": "a", "url": urls[0], "weight": 3}]}).to_string(),
    )
    .unwrap();
    it.until_ready(&["a"]);
    eventually("its weight", || {
        (it.router.workers()[0]["weight"] == 3.0).then_some(())
    });
    for bad in ["", "[]", "- {name: a, ulr: x}\n", "nonsense: [", "3"] {
        std::fs::write(&list, bad).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1500));
        assert_eq!(it.states(), [("a".to_owned(), "ready".to_owned())], "{bad}");
    }
    assert!(
        it.router.stderr().contains("ulr"),
        "the log names the problem: {}",
        it.router.stderr()
    );
}

#[test]
fn a_discovered_worker_with_a_configured_name_is_skipped_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("engines.yaml");
    let yaml = |urls: &[String]| {
        format!(
            "workers: [{{name: a, url: \"{}\"}}]\ndiscovery: {{file: \"{}\"}}\n",
            urls[0],
            list.display()
        )
    };
    let it = ConfiguredFleet::start(3, yaml, &[]);
    it.until_ready(&["a"]);
    let urls = it.urls();
    let found = |weight: u32| {
        let entries = format!(
            "- {{name: a, url: \"{}\"}}\n- {{name: b, url: \"{}\", weight: {weight}}}\n- {{name: b, url: \"{}\"}}\n",
            urls[1], urls[1], urls[2]
        );
        std::fs::write(&list, entries).unwrap();
    };
    found(2);
    it.until_ready(&["a", "b"]);
    let url_of = |name: &str| {
        let workers = it.router.workers();
        let worker = workers
            .iter()
            .find(|worker| worker["name"] == name)
            .unwrap();
        (worker["url"].clone(), worker["weight"].clone())
    };
    assert_eq!(url_of("a").0, json!(urls[0]), "the file's own");
    assert_eq!(
        url_of("b"),
        (json!(urls[1]), json!(2.0)),
        "of two discovered workers, the first"
    );
    // The log is written behind what it reports.
    let log = eventually("the warning", || {
        let log = it.router.stderr();
        log.contains("`a` is the name of another worker")
            .then_some(log)
    });
    assert_eq!(
        log.matches("`a` is the name of another worker").count(),
        1,
        "{log}"
    );

    // During a conflict, changes still take effect and leases still end.
    found(3);
    eventually("its weight", || (url_of("b").1 == 3.0).then_some(()));
    let leased = json!({"url": urls[2], "lease_ttl": "1s"}).to_string();
    assert_eq!(
        it.call("PUT", "/admin/workers/c", leased.as_bytes()).status,
        201
    );
    it.until_ready(&["a", "b"]);
    assert_eq!(
        it.router
            .stderr()
            .matches("`a` is the name of another worker")
            .count(),
        1,
        "logged once"
    );
    assert_eq!(it.reload(false).0, 200);

    // The name is free once the file no longer has it.
    it.write(&format!("discovery: {{file: \"{}\"}}\n", list.display()));
    eventually("the discovered worker", || {
        let workers = it.router.workers();
        workers
            .iter()
            .any(|worker| worker["name"] == "a" && worker["url"] == json!(urls[1]))
            .then_some(())
    });
}

/// A name server with one name and a variable list of addresses.
fn name_server(addresses: Arc<Mutex<Vec<[u8; 4]>>>) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((size, from)) = socket.recv_from(&mut buffer) {
            let mut answer = buffer[..size].to_vec();
            let wants_v4 = answer[size - 3] == 1;
            let known = addresses.lock().unwrap().clone();
            (answer[2], answer[3]) = (0x81, 0x80);
            if wants_v4 {
                answer[7] = u8::try_from(known.len()).unwrap();
                for ip in known {
                    answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
                    answer.extend_from_slice(&ip);
                }
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    address
}

#[test]
#[contract("F30")]
fn every_address_of_a_dns_name_is_a_worker_and_a_failing_name_server_changes_nothing() {
    // Two engines at the same port of two loopback addresses.
    let one = Program::engine(&["--no-kv-events", "--host", "127.0.0.1"]);
    let port = one.data().rsplit_once(':').unwrap().1.to_owned();
    let two = Program::engine(&["--no-kv-events", "--host", "127.0.0.2", "--port", &port]);
    let known = Arc::new(Mutex::new(vec![[127, 0, 0, 1]]));
    let server = name_server(Arc::clone(&known));
    let yaml = format!(
        "discovery: {{dns: [{{host: engines.test, port: {port}, server: \"{server}\", interval: 200ms, worker: {{type: vllm}}}}]}}\n"
    );
    let it = ConfiguredFleet::start(0, |_| yaml.clone(), &[]);
    let (first, second) = (format!("127.0.0.1:{port}"), format!("127.0.0.2:{port}"));
    it.until_ready(&[&first]);
    known.lock().unwrap().push([127, 0, 0, 2]);
    it.until_ready(&[&first, &second]);
    assert!(
        it.router
            .workers()
            .iter()
            .all(|worker| worker["type"] == "vllm")
    );
    known.lock().unwrap().clear();
    std::thread::sleep(std::time::Duration::from_secs(1));
    it.until_ready(&[&first, &second]);
    known.lock().unwrap().push([127, 0, 0, 2]);
    it.until_ready(&[&second]);
    drop((one, two));
}

#[test]
#[contract("S40")]
fn a_dns_name_that_changes_to_a_metadata_service_is_not_connected_to() {
    let known = Arc::new(Mutex::new(vec![[169, 254, 169, 254]]));
    let server = name_server(Arc::clone(&known));
    let yaml = format!(
        "discovery: {{dns: [{{host: engines.test, port: 80, server: \"{server}\", interval: 200ms}}]}}\nhealth_checks: {{timeout: 2s}}\n"
    );
    let it = ConfiguredFleet::start(0, |_| yaml.clone(), &[]);
    let refusal = eventually("the worker to be refused", || {
        let workers = it.router.workers();
        Some(workers.first()?["last_error"].as_str()?.to_owned())
    });
    assert_eq!(refusal, "forbidden_address");
}
