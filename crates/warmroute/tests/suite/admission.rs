//! Admission by the live set through the program: a session that does not fit into the cache waits
//! in the router, and the others go on.

use serde_json::{Value, json};

use crate::harness::{RawClient, RoutedFleet, RoutedReply, RouterQueries as _, eventually};

/// A cache that has room for two of the sessions and not for three. A token of a prompt takes a
/// tenth of a millisecond of real time, so that time that was lent for one prompt is paid back long
/// after the test.
const ENGINE: &[&str] = &["--kv-blocks", "3000", "--speed", "1"];
/// Blocks of a session's first prompt: more than a prompt may have that never waits for room.
const PROMPT: u32 = 1100;

/// The prompt of a session's turn: that of the turn before it and four blocks more.
fn prompt(session: u32, turn: u32) -> Value {
    let first = 20_000 * session;
    (first..first + 16 * (PROMPT + 4 * turn)).collect()
}

fn play(routed: &RoutedFleet, session: u32, turn: u32) -> RoutedReply {
    routed.completion(json!({"prompt": prompt(session, turn)}), &[])
}

/// `GET /admin/sessions`.
fn sessions(routed: &RoutedFleet) -> Value {
    RawClient::get(&routed.router.admin(), "/admin/sessions").json()
}

/// Empties the engine's cache.
fn reset_cache(routed: &RoutedFleet) {
    let engine = routed.engines[0].data();
    let reset = RawClient::post(&engine, "/reset_prefix_cache", b"");
    assert_eq!(reset.json()["success"], true);
    // Like vLLM, the engine announces the reset with the events of its next step. A prompt shorter
    // than a block leaves nothing in the cache.
    let short = json!({"model": "sim", "prompt": [1], "max_tokens": 1}).to_string();
    let reply = RawClient::post(&engine, "/v1/completions", short.as_bytes());
    assert_eq!(reply.status, 200);
}

fn assert_is_reason(reason: &Value) {
    let text = reason.as_str().expect("a sentence");
    let names_all = text.starts_with("waiting for room: a holds ")
        && text.contains(" of 3000 blocks in use within ")
        && text.contains("needs 1100; 0 ahead; expected wait ");
    assert!(names_all, "{text}");
}

fn assert_waited_for_room(receipt: &Value) {
    let hold = &receipt["hold"];
    assert_eq!(hold["reason"], "room", "{receipt:#}");
    assert_is_reason(&hold["room"]);
}

#[test]
fn a_session_waits_until_there_is_room_for_it_and_those_in_the_cache_go_on() {
    let routed = RoutedFleet::with_routing(&[ENGINE], "  admission: live_set\n");
    eventually("the size of the cache to be known", || {
        (routed.worker("a")["engine"]["num_blocks"] == 3000).then_some(())
    });
    for turn in 0..12 {
        for session in [1, 2] {
            play(&routed, session, turn);
        }
    }
    // Nothing has been lent yet, so the first session without room is let in without it.
    let third = play(&routed, 3, 0);
    assert_waited_for_room(&routed.receipt(&third));
    assert_eq!(
        sessions(&routed)["ended"],
        json!({"room": 0, "budget": 1, "overdue": 0, "refused": 0})
    );

    // The next one waits: the others have just used what the cache holds.
    play(&routed, 2, 12);
    play(&routed, 3, 1);
    let mut fourth = RawClient::connect(&routed.router.data());
    let body = json!({"model": "sim", "prompt": prompt(4, 0), "max_tokens": 4, "ignore_eos": true});
    let id = [("x-request-id", "fourth")];
    fourth.send("POST", "/v1/completions", &id, body.to_string().as_bytes());
    let metric = |name: &str, labels: &str| routed.router.metric(name, labels);
    let report = eventually("the fourth session to wait for room", || {
        let waiting = metric("warmroute_admission_waiting", "");
        let report = sessions(&routed);
        (waiting == 1.0 && report["waiting_total"] == 1).then_some(report)
    });
    assert_eq!(report["workers"][0]["capacity_blocks"], 3000);
    let waiting = &report["waiting"][0];
    assert_eq!(
        (&waiting["tenant"], &waiting["worker"], &waiting["ahead"]),
        (&json!("default"), &json!("a"), &json!(0))
    );
    assert_is_reason(&waiting["reason"]);

    // A session that the cache holds is not held up.
    let warm = play(&routed, 3, 2);
    assert!(warm.cached > 16 * u64::from(PROMPT), "{warm:?}");
    assert_ne!(routed.receipt(&warm)["hold"]["reason"], "room");

    reset_cache(&routed);
    assert_eq!(fourth.reply().status, 200);
    assert_waited_for_room(&routed.router.receipt("fourth"));
    let report = sessions(&routed);
    assert_eq!(report["waiting_total"], 0);
    assert_eq!(metric("warmroute_admission_waiting", ""), 0.0);
    let ended = |outcome: &str| report["ended"][outcome].as_f64().expect("a number");
    // A slow machine may have had the time to pay back what was lent for the third, and lends again.
    assert_eq!(ended("room") + ended("budget"), 2.0);
    assert_eq!(ended("overdue") + ended("refused"), 0.0);
    for outcome in ["room", "budget", "overdue", "refused"] {
        let label = format!("outcome=\"{outcome}\"");
        let count = metric("warmroute_admission_total", &label);
        assert_eq!(count, ended(outcome), "{outcome}");
    }
}
