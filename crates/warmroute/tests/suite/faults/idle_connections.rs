//! Idle connections to engines.

use std::time::Duration;

use contract_id::contract;

use super::fleet::{ScriptedFleet, fine};
use crate::harness::{RawClient, RouterQueries as _, ScriptedReply, chat, eventually};

/// Open connections of this machine to one of its own ports.
fn connections_to(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel lists its connections");
    let remote = format!(":{port:04X}");
    let is_open_there = |line: &&str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields.len() > 3 && fields[2].ends_with(&remote) && fields[3] == "01"
    };
    table.lines().filter(is_open_there).count()
}

#[test]
#[contract("I7")]
fn idle_connections_are_closed_without_another_request() {
    let scripted = ScriptedFleet::one(ScriptedReply::Late(Duration::from_millis(500), fine()), "");
    let port: u16 = scripted.engines[0]
        .address()
        .rsplit_once(':')
        .expect("host:port")
        .1
        .parse()
        .expect("a port");
    let address = scripted.router.data();
    let mut clients: Vec<_> = (0..8)
        .map(|_| RawClient::chat(&address, &chat("m", "hi", 1)))
        .collect();
    assert!(
        clients
            .iter_mut()
            .all(|client| client.reply().status == 200)
    );
    assert!(connections_to(port) > 0, "they are kept for a while");
    eventually("all of them to be closed", || {
        (connections_to(port) == 0).then_some(())
    });
    scripted.router.wait_until_idle();
}
