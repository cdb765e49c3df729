//! Session affinity through the program.

use std::collections::BTreeSet;

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{RawClient, RawReply, RoutedFleet, RoutedReply, chat_message, words};

/// A client's conversation: all messages so far.
struct Conversation(Vec<Value>);

impl Conversation {
    fn begin(topic: &str) -> Self {
        Self(vec![
            chat_message("system", &words("shared", 40)),
            chat_message("user", &words(topic, 12)),
        ])
    }

    /// Sends the conversation, then appends the reply and another question.
    fn turn(&mut self, routed: &RoutedFleet) -> RawReply {
        let body = json!({"model": "sim", "messages": self.0, "max_tokens": 4, "ignore_eos": true});
        let reply = RawClient::chat(&routed.router.data(), &body).reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        self.0.push(chat_message("assistant", &words("reply", 6)));
        self.0.push(chat_message(
            "user",
            &format!("and then, {}?", self.0.len()),
        ));
        reply
    }

    /// The engine of its next turn.
    fn next_worker(&mut self, routed: &RoutedFleet) -> String {
        self.turn(routed)
            .header("x-warmroute-worker")
            .expect("the reply names its worker")
            .to_owned()
    }
}

fn receipt(routed: &RoutedFleet, reply: &RawReply) -> Value {
    let id = reply
        .header("x-warmroute-decision")
        .expect("the reply names its decision");
    RawClient::get(&routed.router.admin(), &format!("/admin/decisions/{id}")).json()
}

const HARD: &str = "  policy: random\n  session: {mode: hard}\n";

#[test]
fn an_unnamed_conversation_stays_on_its_engine_and_settles_on_another_if_that_dies() {
    let mut routed = RoutedFleet::with(&[&[], &[], &[]], HARD, &[]);
    let mut talks: Vec<_> = (0..8)
        .map(|n| Conversation::begin(&format!("topic {n}")))
        .collect();
    let homes: Vec<String> = talks
        .iter_mut()
        .map(|talk| talk.next_worker(&routed))
        .collect();
    assert!(
        homes.iter().collect::<BTreeSet<_>>().len() > 1,
        "instructions alone are no session: {homes:?}"
    );
    let mut ids = BTreeSet::new();
    for (talk, home) in talks.iter_mut().zip(&homes) {
        for _ in 0..3 {
            let turn = talk.turn(&routed);
            assert_eq!(turn.header("x-warmroute-worker"), Some(home.as_str()));
            let receipt = receipt(&routed, &turn);
            assert_eq!(
                (&receipt["policy"], &receipt["method"]),
                (&json!("random"), &json!("session"))
            );
            ids.insert(
                receipt["session"]
                    .as_str()
                    .expect("it has a session")
                    .to_owned(),
            );
        }
    }
    assert_eq!(
        ids.len(),
        talks.len(),
        "one id each, the same in every turn: {ids:?}"
    );

    let dead = homes[0].clone();
    let place = ["a", "b", "c"]
        .iter()
        .position(|name| *name == dead)
        .expect("one of them");
    routed.engines[place].kill();
    let before: Vec<_> = talks
        .iter_mut()
        .map(|talk| talk.next_worker(&routed))
        .collect();
    for ((talk, home), moved) in talks.iter_mut().zip(&homes).zip(&before) {
        assert!(
            *moved != dead && (home == moved || *home == dead),
            "{home} {moved}"
        );
        for _ in 0..3 {
            assert_eq!(talk.next_worker(&routed), *moved);
        }
    }
}

#[test]
#[contract("V25")]
fn a_whole_name_is_a_session_and_the_configured_headers_come_first() {
    let config = "  policy: random\n  session: {mode: hard, headers: [X-Room]}\n";
    let routed = RoutedFleet::with(&[&[], &[], &[]], config, &[]);
    let send =
        |headers: &[(&str, &str)]| routed.completion(json!({"prompt": words("a", 20)}), headers);
    let session = |turn: &RoutedReply| routed.receipt(turn)["session"].clone();
    let room = send(&[("x-room", "session-1")]);
    for headers in [
        &[("x-room", "session-1")][..],
        &[
            ("x-room", "session-1"),
            ("x-claude-code-session-id", "other"),
        ],
        &[("x-claude-code-session-id", "session-1")],
        &[("session_id", "session-1")],
    ] {
        let again = send(headers);
        assert_eq!(
            (again.worker.as_str(), session(&again)),
            (room.worker.as_str(), session(&room)),
            "{headers:?}"
        );
    }
    assert_ne!(session(&send(&[("x-room", "session-12")])), session(&room));
    assert_ne!(
        session(&send(&[("x-session-id", "session-1")])),
        session(&room),
        "that header is not configured here"
    );
    assert!(
        !session(&room).to_string().contains("session-1"),
        "session names are not shown"
    );
}
