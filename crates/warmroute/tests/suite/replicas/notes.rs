//! What belongs to clients holds through any router: sessions, stored responses, cool-downs.

use contract_id::contract;
use serde_json::json;

use super::group::{Link, RouterGroup, engines, worker_of};
use crate::harness::{ScriptedEngine, ScriptedReply, eventually, json_reply};

#[test]
#[contract("DY23")]
fn a_session_stays_on_its_worker_through_another_router() {
    for link in Link::all() {
        let (_engines, workers) = engines(4, &[]);
        let group = RouterGroup::start(link, 3, workers);
        for session in 0..8 {
            let name = format!("session-{session}");
            // By chance, so that only the session explains a repeated choice.
            let headers = [("x-session-id", &*name), ("x-warmroute-policy", "random")];
            let home = worker_of(&group.chat(session % 3, "hello", &headers));
            let other = (session + 1) % 3;
            eventually("the session to be known to another router", || {
                // A dry run binds nothing.
                let body = json!({"model": "sim", "messages": [{"role": "user", "content": "on"}]});
                let winner = || {
                    group.send(other, "/v1/route", &body, &headers).json()["winner"]["worker"]
                        .clone()
                };
                (0..8).all(|_| winner() == home).then_some(())
            });
            let second = group.chat(other, "go on", &headers);
            assert_eq!(worker_of(&second), home, "session {session}");
        }
    }
}

#[test]
#[contract("DY23")]
fn a_stored_response_is_continued_on_its_worker_through_another_router() {
    for link in Link::all() {
        let stored = ["resp_a", "resp_b"].map(|id| {
            let response = json!({"id": id, "object": "response", "usage": null}).to_string();
            ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", &response)))
        });
        let workers = vec![
            format!("a={}", stored[0].url()),
            format!("b={}", stored[1].url()),
        ];
        let group = RouterGroup::start(link, 2, workers);
        let headers = [("x-warmroute-policy", "round_robin")];
        let send = |at, previous: Option<&str>| {
            let body = json!({"model": "m", "input": "hi", "previous_response_id": previous});
            worker_of(&group.send(at, "/v1/responses", &body, &headers))
        };
        assert_ne!(
            send(0, None),
            send(0, None),
            "both workers store a response"
        );
        for (worker, id) in [("a", "resp_a"), ("b", "resp_b")] {
            eventually(
                "the response's worker to be known to another router",
                || (0..4).all(|_| send(1, Some(id)) == worker).then_some(()),
            );
        }
    }
}

#[test]
#[contract("F14", "F15")]
fn a_worker_that_asked_for_a_pause_is_left_alone_by_every_router() {
    for link in Link::all() {
        let busy = ScriptedEngine::start(ScriptedReply::whole(
            b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 30\r\ncontent-length: 0\r\n\r\n",
        ));
        let chat = json!({
            "id": "c", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        });
        let free = ScriptedEngine::start(ScriptedReply::whole(json_reply(
            "200 OK",
            "",
            &chat.to_string(),
        )));
        let workers = vec![
            format!("busy={}", busy.url()),
            format!("free={}", free.url()),
        ];
        let group = RouterGroup::start(link, 2, workers);
        let headers = [("x-warmroute-policy", "round_robin")];
        let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
        let send = |at| group.send(at, "/v1/chat/completions", &chat, &headers);
        // One of two goes to the busy one, which answers 429, and then to the other one.
        for _ in 0..2 {
            assert_eq!(send(0).status, 200);
        }
        let refused = busy.requests();
        assert!(refused >= 1);
        eventually("the other router to know of the pause", || {
            let winner =
                || group.send(1, "/v1/route", &chat, &headers).json()["winner"]["worker"].clone();
            (0..4).all(|_| winner() == "free").then_some(())
        });
        for _ in 0..4 {
            assert_eq!(worker_of(&send(1)), "free");
        }
        assert_eq!(busy.requests(), refused);
    }
}
