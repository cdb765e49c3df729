//! Messages with separate prefill and decode workers.

use serde_json::{Value, json};

use super::pools::{ScriptedPools, rewrites, yes};
use crate::harness::{RawClient, RouterQueries as _, ScriptedReply, json_reply};

#[test]
fn both_legs_get_the_chat_and_the_client_gets_a_message() {
    let prefill = json!({"choices": [{}], "kv_transfer_params": {"remote_host": "h"}, "prompt_token_ids": [1, 2]});
    let scripted = ScriptedPools::start(
        "nixl",
        ScriptedReply::whole(json_reply("200 OK", "", &prefill.to_string())),
        yes(),
    );
    let body =
        json!({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]})
            .to_string();
    let headers = [("x-request-id", "r")];
    let reply = RawClient::post_with(
        &scripted.router.data(),
        "/v1/messages",
        &headers,
        body.as_bytes(),
    );
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(
        reply.json()["content"],
        json!([{"type": "text", "text": "yes"}])
    );
    let (first, second) = (
        scripted.prefill.next_request(),
        scripted.decode.next_request(),
    );
    for seen in [&first, &second] {
        assert_eq!(seen.line(), "POST /v1/chat/completions HTTP/1.1");
        let sent: Value = serde_json::from_slice(&seen.body).expect("JSON");
        assert_eq!(sent["messages"], json!([{"role": "user", "content": "hi"}]));
        assert!(sent["kv_transfer_params"].is_object());
    }
    let receipt = scripted.router.receipt("r");
    assert_eq!(
        rewrites(&reply, &receipt),
        ["messages", "token_ids", "kv_transfer"]
    );
    assert_eq!(receipt["prefill"]["skipped"], false);
    scripted.router.wait_until_idle();
}
