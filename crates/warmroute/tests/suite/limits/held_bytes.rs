//! The body budget and the deadline of a body.

use std::time::Duration;

use contract_id::contract;

use crate::{
    faults::fleet::{CHAT, ScriptedFleet, fine},
    harness::{RawClient, RouterQueries as _, ScriptedReply, chat, chunk, eventually},
};

const MIB: usize = 1 << 20;
/// All bodies may have 2 MiB together, those of one address 1.75 MiB, and its bodies above 128 KiB
/// 1.5 MiB.
const SMALL_LIMITS: &str =
    "server: {max_body_bytes: 1MiB, max_held_bytes: 2MiB, body_timeout: 10m}\n";

fn head(framing: &str) -> Vec<u8> {
    format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n").into_bytes()
}

/// A connection that announces `announced` bytes and sends `sent` of them.
fn sending(data: &str, announced: usize, sent: usize) -> RawClient {
    let mut client = RawClient::connect(data);
    client.send_bytes(&head(&format!("content-length: {announced}")));
    client.send_bytes(&vec![b' '; sent]);
    client
}

fn buffered(scripted: &ScriptedFleet) -> f64 {
    scripted.router.metric("warmroute_held_body_bytes", "")
}

fn is_refused(client: &mut RawClient) {
    let reply = client.reply();
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (503, "overloaded")
    );
    assert!(reply.header("retry-after").is_some());
    assert!(
        reply.text().contains("server.max_held_bytes"),
        "{}",
        reply.text()
    );
}

/// Bodies of 2 bytes to 100 KB are read, and valid chats are answered.
fn small_bodies_are_served(scripted: &ScriptedFleet) {
    let data = scripted.router.data();
    assert_eq!(
        RawClient::post(&data, CHAT, b"{}").status,
        400,
        "the body was read"
    );
    for padding in [0, 10_000, 100_000] {
        let body = format!("{}{}", chat("m", "hi", 1), " ".repeat(padding));
        assert_eq!(
            RawClient::post(&data, CHAT, body.as_bytes()).status,
            200,
            "{padding}"
        );
    }
}

#[test]
#[contract("F76", "S33")]
fn announced_bodies_that_do_not_arrive_take_no_budget() {
    let scripted = ScriptedFleet::one(
        ScriptedReply::whole(fine()),
        "server: {max_body_bytes: 32MiB, max_held_bytes: 64MiB}\n",
    );
    let data = scripted.router.data();
    let silent: Vec<_> = (0..64).map(|_| sending(&data, 32 * MIB, 0)).collect();
    eventually("all of them to be read", || {
        (buffered(&scripted) > 0.0).then_some(())
    });
    small_bodies_are_served(&scripted);
    assert!(
        buffered(&scripted) <= (2 * MIB) as f64,
        "the received bytes, and little of the announced ones: {}",
        buffered(&scripted)
    );
    drop(silent);
    scripted.router.wait_until_idle();
}

#[test]
#[contract("F76", "S33", "I7")]
fn large_bodies_leave_room_for_small_ones() {
    let limits = "server: {max_body_bytes: 8MiB, max_held_bytes: 16MiB, body_timeout: 10m}\n";
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), limits);
    let data = scripted.router.data();
    let first = sending(&data, 8 * MIB, 8 * MIB - 1);
    eventually("the first body to be held", || {
        (buffered(&scripted) == (8 * MIB - 1) as f64).then_some(())
    });
    is_refused(&mut sending(&data, 5 * MIB, 0));
    let second = sending(&data, 4 * MIB, 4 * MIB - 1);
    eventually("the second body to be held", || {
        (buffered(&scripted) == (12 * MIB - 2) as f64).then_some(())
    });
    is_refused(&mut sending(&data, 2 * MIB, 0));
    small_bodies_are_served(&scripted);
    drop((first, second));
    // The router reads little of a refused body, so a client that sends 5 MiB before there is room
    // may find its connection closed before it could write them all.
    eventually("room again", || (buffered(&scripted) == 0.0).then_some(()));
    let body = format!("{}{}", chat("m", "hi", 1), " ".repeat(5 * MIB));
    assert_eq!(
        RawClient::post(&data, CHAT, body.as_bytes()).status,
        200,
        "5 MiB fit again"
    );
    scripted.router.wait_until_idle();
}

#[test]
#[contract("F76", "S33")]
fn a_tenant_with_its_part_of_the_budget_is_refused_and_no_other_behind_its_address_is() {
    // One tenant may have 1.25 MiB, and 1 MiB of bodies above 128 KiB.
    let limits =
        format!("{SMALL_LIMITS}api_keys: [{{name: a, key: sk-a}}, {{name: b, key: sk-b}}]\n");
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), &limits);
    let data = scripted.router.data();
    let announcing = || {
        let mut client = RawClient::connect(&data);
        let framing = format!("authorization: Bearer sk-a\r\ncontent-length: {MIB}");
        client.send_bytes(&head(&framing));
        client
    };
    let status = |key: &str, padding: usize| {
        let body = format!("{}{}", chat("m", "hi", 1), " ".repeat(padding));
        RawClient::post_with(&data, CHAT, &[("x-api-key", key)], body.as_bytes()).status
    };
    let mut first = announcing();
    first.send_bytes(" ".repeat(MIB - 1).as_bytes());
    eventually("the first body to be held", || {
        (buffered(&scripted) == (MIB - 1) as f64).then_some(())
    });
    is_refused(&mut announcing());
    assert_eq!(status("sk-a", 100_000), 200, "a small one");
    assert_eq!(
        status("sk-b", 400_000),
        200,
        "a large one of another tenant"
    );
    drop(first);
    eventually("room again", || (buffered(&scripted) == 0.0).then_some(()));
    assert_eq!(status("sk-a", 900_000), 200, "a large one again");
    scripted.router.wait_until_idle();
}

#[test]
#[contract("F76", "I7")]
fn bodies_over_the_budget_are_refused_before_they_are_sent() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), SMALL_LIMITS);
    let data = scripted.router.data();
    let mut large = vec![sending(&data, MIB, MIB - 1)];
    eventually("it to be held", || {
        (buffered(&scripted) == (MIB - 1) as f64).then_some(())
    });
    // A client that expects a 100 gets none.
    let waits = |length: usize| {
        let mut waits = RawClient::connect(&data);
        waits.send_bytes(&head(&format!(
            "content-length: {length}\r\nexpect: 100-continue"
        )));
        waits
    };
    is_refused(&mut waits(MIB));
    let small: Vec<_> = (0..6)
        .map(|_| sending(&data, 128 << 10, (128 << 10) - 1))
        .collect();
    let full = MIB - 1 + 6 * ((128 << 10) - 1);
    eventually("the small bodies to be held", || {
        (buffered(&scripted) == full as f64).then_some(())
    });
    is_refused(&mut waits(20));
    let mut grows = RawClient::connect(&data);
    grows.send_bytes(&head("transfer-encoding: chunked"));
    grows.send_bytes(&chunk(b"{\"model\":"));
    is_refused(&mut grows);
    assert_eq!(
        RawClient::get(&data, "/v1/models").status,
        200,
        "a request without a body is served"
    );
    assert_eq!(buffered(&scripted), full as f64);
    assert_eq!(
        scripted
            .router
            .metric("warmroute_shed_total", "reason=\"held_bytes\""),
        3.0
    );

    large.pop();
    eventually("room again", || {
        (scripted.post(&chat("m", "hi", 1)).status == 200).then_some(())
    });
    drop(small);
    scripted.router.wait_until_idle();
}

#[test]
#[contract("F76")]
fn bodies_of_unknown_length_count_as_they_grow() {
    let scripted = ScriptedFleet::one(
        ScriptedReply::whole(fine()),
        "server: {max_body_bytes: 1MiB, max_held_bytes: 1MiB}\n",
    );
    let data = scripted.router.data();
    let piece = vec![b' '; 400 << 10];
    let grown = |data: &str| {
        let mut client = RawClient::connect(data);
        client.send_bytes(&head("transfer-encoding: chunked"));
        client.send_bytes(&chunk(&piece));
        client
    };
    let first = [grown(&data), grown(&data)];
    eventually("both to be counted", || {
        (buffered(&scripted) == (800 << 10) as f64).then_some(())
    });
    is_refused(&mut grown(&data));
    drop(first);
    scripted.router.wait_until_idle();
}

#[test]
#[contract("S33")]
fn a_body_that_arrives_too_slowly_ends_at_its_deadline() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "server: {body_timeout: 1s}\n");
    let data = scripted.router.data();
    let mut dripping: Vec<_> = (0..8).map(|_| sending(&data, MIB, 200 << 10)).collect();
    // Fast enough for the minimum rate for minutes.
    eventually("the deadline", || {
        let taken = dripping
            .iter_mut()
            .map(|client| client.offer_bytes(b" "))
            .filter(|taken| *taken)
            .count();
        std::thread::sleep(Duration::from_millis(50));
        (taken == 0 || buffered(&scripted) == 0.0).then_some(())
    });
    let mut last = sending(&data, MIB, 200 << 10);
    let reply = last.reply();
    assert_eq!(
        (reply.status, reply.header("connection")),
        (400, Some("close"))
    );
    assert!(
        reply.text().contains("server.body_timeout"),
        "{}",
        reply.text()
    );
    drop(dripping);
    scripted.router.wait_until_idle();
}
