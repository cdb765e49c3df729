//! Addresses that send wrong keys.

use contract_id::contract;

use super::access::{ClosedRouter, KEY, TOKEN, bearer, call};
use crate::harness::{Page, RawClient, RawReply};

/// Wrong keys that one address sends.
const GUESSES: usize = 1000;
/// Every wait that a refusal may name.
const WAITS: [u32; 7] = [1, 2, 4, 8, 16, 32, 60];

fn get(client: &mut RawClient, path: &str, headers: &[(&str, &str)]) -> RawReply {
    client.send("GET", path, headers, b"");
    client.reply()
}

/// Sends wrong keys on one connection and right ones on another; returns the refusals.
fn guess(address: &str, path: &str, right: &str) -> Vec<RawReply> {
    let (mut attacker, mut client) = (RawClient::connect(address), RawClient::connect(address));
    let right = [("authorization", right)];
    let guesses = (0..GUESSES).map(|number| {
        if number % 50 == 0 {
            assert_eq!(get(&mut client, path, &right).status, 200, "{number}");
        }
        let guess = bearer(&format!("a-guessed-key-{number:06}"));
        get(&mut attacker, path, &[("authorization", &guess)])
    });
    guesses.collect()
}

/// Checks that the wait grew to its end; returns the number of throttled requests.
fn check_waits(refusals: &[RawReply]) -> usize {
    let (told, throttled): (Vec<_>, Vec<_>) =
        refusals.iter().partition(|reply| reply.status == 401);
    assert!(told.len() > 10, "{}", told.len());
    assert!(refusals[..11].iter().all(|reply| reply.status == 401));
    let wait = |reply: &RawReply| {
        assert_eq!(reply.status, 429, "{}", reply.text());
        assert_eq!(reply.error_code(), "rate_limited");
        let wait = reply.header("retry-after").expect("a time");
        wait.parse::<u32>().expect("seconds")
    };
    let waits: Vec<u32> = throttled.iter().map(|reply| wait(reply)).collect();
    assert!(waits.is_sorted(), "{waits:?}");
    assert!(waits.iter().all(|wait| WAITS.contains(wait)), "{waits:?}");
    assert_eq!(waits.last(), Some(&60));
    throttled.len()
}

#[test]
#[contract("S13")]
fn a_thousand_wrong_keys_wait_ever_longer_and_a_right_one_never() {
    let closed = ClosedRouter::start();
    let (data, admin) = (closed.data(), closed.admin());
    let (key, token) = (bearer(KEY), bearer(TOKEN));
    let clients = check_waits(&guess(&data, "/v1/models", &key));
    // Without a key the rest of the wait is told, and needs no key where none is needed.
    let missing = call(&data, "GET", "/v1/models", &[]);
    assert_eq!(missing.status, 429);
    assert_eq!(call(&data, "GET", "/livez", &[]).status, 200);
    // The throttle is that of one listener.
    let missing = call(&admin, "GET", "/admin/workers", &[]);
    assert_eq!(missing.status, 401);
    let operators = check_waits(&guess(&admin, "/admin/workers", &token));
    let conductor = call(&admin, "GET", "/services", &[]);
    assert_eq!(conductor.status, 429);
    assert!(conductor.header("retry-after").is_some());
    assert!(
        conductor.json()["error"].is_string(),
        "{}",
        conductor.text()
    );

    let page = call(&admin, "GET", "/metrics", &[("authorization", &token)]);
    let page = Page::read(&page.text());
    let throttled =
        |listener| page.value("warmroute_throttled_keys_total", &[("listener", listener)]);
    #[expect(clippy::cast_precision_loss, reason = "some thousand")]
    let (clients, operators) = ((clients + 1) as f64, (operators + 1) as f64);
    assert_eq!(throttled("data"), clients);
    assert_eq!(throttled("admin"), operators);
}

#[test]
#[contract("S13")]
fn an_address_behind_a_trusted_proxy_is_throttled_alone() {
    let closed = ClosedRouter::start_with("server: {trusted_proxies: [127.0.0.1]}\n");
    let wrong = bearer("a-guessed-key");
    let mut client = RawClient::connect(&closed.data());
    let mut status = |address: &str| {
        let headers = [("authorization", &*wrong), ("x-forwarded-for", address)];
        get(&mut client, "/v1/models", &headers).status
    };
    let of_one: Vec<u16> = (0..200).map(|_| status("198.51.100.7")).collect();
    assert_eq!(of_one.last(), Some(&429));
    // What the client wrote itself stands before the address that the proxy saw.
    assert_eq!(status("203.0.113.9, 198.51.100.7"), 429);
    assert_eq!(status("198.51.100.7, 203.0.113.9"), 401);
    assert_eq!(status("2001:db8::1"), 401);
}

#[test]
#[contract("S13")]
fn a_client_that_is_no_trusted_proxy_cannot_choose_its_address() {
    let closed = ClosedRouter::start();
    let wrong = bearer("a-guessed-key");
    let mut client = RawClient::connect(&closed.data());
    let last = (0..200_u8).map(|number| {
        let address = format!("198.51.100.{number}");
        let headers = [("authorization", &*wrong), ("x-forwarded-for", &*address)];
        get(&mut client, "/v1/models", &headers).status
    });
    assert_eq!(last.last(), Some(429));
}
