//! TensorRT-LLM: a context request, then a generation request.
//!
//! The context worker computes the prompt and its first token; its reply has the state that the
//! generation worker needs to fetch the KV. This state and the prompt's token ids are copied
//! unchanged into the generation request, except for the request's type.

use bytes::Bytes;
use dialect::{Edit, PrefillReply, RawJson};

use super::{
    super::{attempt_failure::AttemptFailure, record::RequestGuard},
    legs::{LegsOutcome, PrefillDecodeLegs, read},
};

/// The edits that make a request a context request. The engine refuses unknown members, and reads
/// the maximum length of chats and completions alike from this name.
const CONTEXT: [Edit<'_>; 6] = [
    Edit::Set("max_tokens", "1"),
    Edit::Remove("max_completion_tokens"),
    Edit::Remove("min_tokens"),
    Edit::Set("stream", "false"),
    Edit::Remove("stream_options"),
    Edit::Set("disaggregated_params", r#"{"request_type":"context_only"}"#),
];
/// The finish reasons of a reply that goes on. With another one the first token was the last.
const UNFINISHED: [&str; 2] = ["length", "not_finished"];

pub(super) async fn send(legs: &PrefillDecodeLegs<'_>, guard: &mut RequestGuard) -> LegsOutcome {
    let generation = generation_body(legs, guard).await;
    legs.decode_after(generation, guard).await
}

async fn generation_body(
    legs: &PrefillDecodeLegs<'_>,
    guard: &mut RequestGuard,
) -> Result<Bytes, Box<AttemptFailure>> {
    let reply = legs.prefill(legs.body(&CONTEXT)?).await?;
    let reply = read(&reply)?;
    let params = generation_params(&reply)?;
    let mut edits = vec![Edit::Set("disaggregated_params", &params)];
    let mut rewrites = vec!["kv_transfer"];
    if let Some(ids) = reply.prompt_token_ids {
        edits.push(Edit::Set(prompt_field(legs), ids.as_str()));
        rewrites.insert(0, "token_ids");
    }
    let body = legs.body(&edits)?;
    guard.finish_prefill(true, reply.usage);
    guard.record_rewrite(rewrites);
    Ok(body)
}

/// Returns the member that takes the prompt's token ids: a chat has one beside its messages.
fn prompt_field(legs: &PrefillDecodeLegs<'_>) -> &'static str {
    if legs.call.target.path().ends_with("/chat/completions") {
        "prompt_token_ids"
    } else {
        "prompt"
    }
}

/// Returns the context reply's parameters as those of the generation request.
fn generation_params(reply: &PrefillReply<'_>) -> Result<String, Box<AttemptFailure>> {
    let ended = reply.finish_reason.and_then(RawJson::string);
    if let Some(reason) = ended.filter(|reason| !UNFINISHED.contains(&&**reason)) {
        // Nothing is wrong with the worker: the reply is one token long.
        return Err(Box::new(AttemptFailure {
            kind: None,
            ..AttemptFailure::protocol(format!(
                "the context request ended with {reason:?}: there is nothing to generate from it"
            ))
        }));
    }
    let absent = || {
        AttemptFailure::protocol(
            "the context worker's reply has no disaggregated_params: is its cache_transceiver_config set?"
                .to_owned(),
        )
    };
    let params = reply.disaggregated_params.ok_or_else(absent)?.as_str();
    let edit = Edit::Set("request_type", r#""generation_only""#);
    let spliced = dialect::splice(params.as_bytes(), &[edit]);
    let spliced = spliced
        .ok()
        .and_then(|params| String::from_utf8(params).ok());
    spliced.ok_or_else(|| Box::new(absent()))
}

#[cfg(test)]
mod tests {
    use config::Connector;
    use contract_id::contract;
    use proxy::FakeReply;

    use super::super::tests::{bodies, chat, deliver, gateway, note, ok};
    use crate::request::test_gateway::attempts;

    const CONTEXT_REPLY: &str = r#"{"id":"c","prompt_token_ids":[1, 2],"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"length","disaggregated_params":{ "request_type":"context_only","first_gen_tokens":[ 7],"ctx_request_id":9007199254740993,"encoded_opaque_state":"QUJD/+==","draft_tokens":null,"x":1e2 }}],"usage":{"prompt_tokens":2,"completion_tokens":1}}"#;

    #[tokio::test]
    #[contract("V39")]
    async fn the_generation_request_has_the_context_replys_state_unchanged() {
        let test = gateway(Connector::Trtllm);
        test.script(1, ok(CONTEXT_REPLY));
        test.script(2, ok("{}"));
        let (reply, receipt) = test.deliver(chat(&test, 8999)).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "{}"));
        let sent: Vec<String> = test
            .upstream
            .take_requests()
            .iter()
            .map(|request| String::from_utf8_lossy(request.body()).into_owned())
            .collect();
        // The client's bytes, and the members of the hand-over behind them.
        assert_eq!(
            sent,
            [
                r#"{"model":"m","messages":[],"max_tokens":1,"stream":false,"disaggregated_params":{"request_type":"context_only"}}"#,
                r#"{"model":"m","messages":[],"disaggregated_params":{ "request_type":"generation_only","first_gen_tokens":[ 7],"ctx_request_id":9007199254740993,"encoded_opaque_state":"QUJD/+==","draft_tokens":null,"x":1e2 },"prompt_token_ids":[1, 2]}"#,
            ]
        );
        assert_eq!(receipt.rewrites, ["token_ids", "kv_transfer"]);
        assert_eq!(note(&receipt).skipped, None);
        assert_eq!(attempts(&receipt), [("w2", "", "ok")]);
    }

    #[tokio::test]
    #[contract("V39")]
    async fn without_a_state_to_hand_over_the_generation_worker_computes_the_prompt() {
        for context in [
            ok(r#"{"choices":[]}"#),
            ok(r#"{"choices":[{"finish_reason":"length"}]}"#),
            ok(r#"{"choices":[{"finish_reason":"length","disaggregated_params":"x"}]}"#),
            // The first token was the last one.
            ok(r#"{"choices":[{"finish_reason":"stop","disaggregated_params":{}}]}"#),
            FakeReply::json(400, "{}"),
        ] {
            let what = format!("{context:?}");
            let (test, reply, _) = deliver(Connector::Trtllm, context, ok("{}")).await;
            assert_eq!(reply.status, 200, "{what}");
            let sent = bodies(&test);
            let (worker, body) = sent.last().expect("two requests");
            assert_eq!((sent.len(), *worker), (2, 2), "{what}");
            let client = serde_json::json!({"model": "m", "messages": []});
            assert_eq!(*body, client, "{what}");
        }
    }
}
