//! Nobody gets another's reply, or learns that there is one.

use contract_id::contract;
use serde_json::json;

use super::{CachedRouter, FINE, question, status, with};
use crate::harness::{RawClient, RawReply, RouterQueries as _};

/// Questions that one tenant asked.
const QUESTIONS: usize = 500;
/// Requests of others for the same.
const PROBES: usize = 50_000;

fn answer(client: &mut RawClient, bearer: &str, question: usize) -> RawReply {
    let body = super::question(&format!("question {question}")).to_string();
    client.send(
        "POST",
        "/v1/chat/completions",
        &[("authorization", bearer)],
        body.as_bytes(),
    );
    client.reply()
}

/// What of a reply does not depend on which request it is.
fn told(reply: &RawReply) -> (u16, Vec<(String, Vec<u8>)>, String) {
    let own = |name: &str| {
        matches!(
            name,
            "x-request-id" | "x-warmroute-decision" | "date" | "age"
        )
    };
    let headers = reply
        .headers
        .iter()
        .filter(|(name, _)| !own(name))
        .cloned()
        .collect();
    (reply.status, headers, reply.text())
}

#[test]
#[contract("CK28", "S45", "G18")]
fn fifty_thousand_probes_of_others_find_nothing_and_look_like_questions_nobody_asked() {
    let cached = CachedRouter::start(", capacity: 100000");
    let mut owner = RawClient::connect(&cached.router.data());
    for question in 0..QUESTIONS {
        assert_eq!(
            status(&answer(&mut owner, "Bearer a", question)),
            "MISS not_found"
        );
    }
    let known = (0..QUESTIONS)
        .filter(|question| status(&answer(&mut owner, "Bearer a", *question)) == "HIT stored");
    let known = known.count();
    assert!(
        known * 100 >= QUESTIONS * 99,
        "the positive control: {known} of {QUESTIONS}"
    );
    assert_eq!(cached.engine.requests(), QUESTIONS as u64);
    // Half of the probes are for what the owner asked, half for what nobody did; each of another caller.
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let address = cached.router.data();
            std::thread::spawn(move || {
                let mut socket = RawClient::connect(&address);
                let mut seen = [Vec::new(), Vec::new()];
                for probe in 0..PROBES / 4 {
                    let (asked, caller) = (probe % 2, format!("Bearer b{client}-{probe}"));
                    let question = probe / 2 % QUESTIONS + asked * 1_000_000;
                    let told = told(&answer(&mut socket, &caller, question));
                    if !seen[asked].contains(&told) {
                        seen[asked].push(told);
                    }
                }
                seen
            })
        })
        .collect();
    for client in clients {
        let [asked_before, never_asked] = client.join().expect("it ran to its end");
        assert_eq!(asked_before, never_asked, "no reply tells them apart");
        assert!(
            asked_before
                .iter()
                .all(|(status, _, text)| (*status, text.as_str()) == (200, FINE))
        );
        assert!(asked_before.iter().all(|(_, headers, _)| {
            headers
                .iter()
                .any(|(name, value)| name == "x-cache" && value == b"MISS")
        }));
    }
    assert_eq!(
        cached.engine.requests(),
        (QUESTIONS + PROBES) as u64,
        "every probe reached the engine"
    );
    cached.router.settled();
}

#[test]
#[contract("CK28", "S44", "S45")]
fn a_salt_of_the_client_s_own_keeps_its_replies_apart_too() {
    let cached = CachedRouter::start("");
    let salted = |salt: &str| with(question("why?"), "cache_salt", json!(salt));
    assert_eq!(cached.status(&salted("a")), "MISS not_found");
    assert_eq!(
        [cached.status(&salted("b")), cached.status(&salted("a"))],
        ["MISS not_found", "HIT stored"]
    );
}

#[test]
#[contract("S45", "S49")]
fn a_key_that_only_the_engine_can_check_is_never_answered_with_another_s_reply() {
    let cached = CachedRouter::start("");
    let as_caller = |key: &str| status(&cached.ask_as(&question("why?"), &[("x-api-key", key)]));
    assert_eq!(
        [as_caller("right"), as_caller("right")],
        ["MISS not_found", "HIT stored"]
    );
    assert_eq!(
        [as_caller("wrong"), cached.status(&question("why?"))],
        ["MISS not_found", "MISS not_found"]
    );
    let with_cookie = cached.ask_as(&question("why?"), &[("cookie", "session=a")]);
    assert_eq!(status(&with_cookie), "MISS not_found");
    // In flight likewise.
    cached.engine.script(super::ScriptedReply::Late(
        std::time::Duration::from_millis(400),
        super::json_reply("200 OK", "", FINE),
    ));
    let body = question("how?").to_string();
    let mut clients: Vec<_> = ["Bearer a", "Bearer b"]
        .iter()
        .map(|caller| {
            let mut client = RawClient::connect(&cached.router.data());
            client.send(
                "POST",
                "/v1/chat/completions",
                &[("authorization", caller)],
                body.as_bytes(),
            );
            client
        })
        .collect();
    let replies: Vec<_> = clients
        .iter_mut()
        .map(|client| status(&client.reply()))
        .collect();
    assert_eq!(replies, ["MISS not_found", "MISS not_found"]);
    assert_eq!(cached.engine.requests(), 6);
}
