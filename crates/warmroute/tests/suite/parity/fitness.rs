//! The requests that parity compares: those with exact tokens and a successful end, each once.

use std::cell::Cell;

use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, chunk, json_reply,
    stream_head, stream_reply,
};

/// Only the test sends requests to the engine; any other would advance its script.
const CONFIG: &str = "
parity: {min_joined: 4}
retry: {base_delay: 1ms}
models: {defaults: {tokenizer: none}}
";

/// A completion whose usage reports `cached` cached tokens.
fn fine(cached: u32) -> String {
    json!({
        "choices": [{"index": 0, "text": "x", "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 64, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached},
        },
    })
    .to_string()
}

struct ScriptedParity {
    router: Program,
    engine: ScriptedEngine,
    next_id: Cell<u32>,
}

impl ScriptedParity {
    fn start() -> Self {
        let engine =
            ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", &fine(0))));
        let router = Program::serve_with(CONFIG, &[format!("a={}", engine.url())], &[]).ready(1);
        Self {
            router,
            engine,
            next_id: Cell::new(0),
        }
    }

    /// Sends a completion with a prompt of token ids and these fields; returns its status.
    fn send(&self, fields: &Value) -> u16 {
        self.send_with(fields, |client| client.reply().status)
    }

    /// The same; `act` reads the reply from the connection.
    fn send_with<R>(&self, fields: &Value, act: impl FnOnce(&mut RawClient) -> R) -> R {
        let mut body =
            json!({"model": "m", "prompt": (0..64).collect::<Vec<u32>>(), "max_tokens": 1});
        for (key, value) in fields.as_object().expect("fields") {
            body[key] = value.clone();
        }
        let id = format!("asked-{}", self.next_id.replace(self.next_id.get() + 1));
        let mut client = RawClient::connect(&self.router.data());
        client.send(
            "POST",
            "/v1/completions",
            &[("x-request-id", id.as_str())],
            body.to_string().as_bytes(),
        );
        let result = act(&mut client);
        drop(client);
        // The receipt is settled, so the request is compared if it can be.
        self.router.receipt(&id);
        result
    }

    fn counted(&self, metric: &str) -> u64 {
        let value = self.router.metric(metric, "worker=\"a\"");
        format!("{value:.0}").parse().expect("a whole number")
    }

    fn row(&self) -> Value {
        RawClient::get(&self.router.admin(), "/admin/parity").json()["workers"][0].clone()
    }
}

#[test]
fn incomparable_requests_are_not_joined() {
    let scripted = ScriptedParity::start();
    scripted.send(&json!({}));
    assert_eq!(scripted.row()["requests"], 1);
    // Matched by text; several choices; several prompts.
    scripted.send(&json!({"prompt": "some text that no tokenizer is known for"}));
    scripted.send(&json!({"n": 2}));
    scripted.send(&json!({"prompt": ["one", "two"]}));
    // Truncated at the front by the engine; computed without its cache.
    scripted.send(&json!({"truncate_prompt_tokens": 32}));
    scripted.send(&json!({"prompt_logprobs": 1}));
    scripted.send(&json!({"echo": true, "logprobs": 1}));
    assert_eq!(scripted.row()["requests"], 1);
    // The engine refused it, failed, or reported an error in the stream.
    for reply in ["400 Bad", "500 Oops"] {
        scripted
            .engine
            .once(ScriptedReply::whole(json_reply(reply, "", "{}")));
        scripted.send(&json!({}));
    }
    scripted.engine.once(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"error":{"message":"oops","code":500}}"#,
    )));
    scripted.send(&json!({}));
    assert_eq!(scripted.row()["requests"], 1);
    // The client left in the middle of its stream.
    let token = format!("data: {}\n\n", fine(48));
    scripted.engine.once(ScriptedReply::Stall(
        [stream_head(), chunk(token.as_bytes())].concat(),
    ));
    scripted.send_with(&json!({"stream": true}), |client| {
        client.read_until("cached_tokens")
    });
    assert_eq!(scripted.row()["requests"], 1);
    assert_eq!(scripted.counted("warmroute_parity_requests_total"), 1);
}

#[test]
fn requests_that_only_resemble_incomparable_ones_are_joined() {
    let scripted = ScriptedParity::start();
    for fields in [
        json!({"logprobs": 1}),
        json!({"echo": true}),
        json!({"echo": false, "logprobs": 1, "n": 1}),
    ] {
        scripted.send(&fields);
    }
    scripted.send(&json!({"prompt_logprobs": null, "kv_transfer_params": null, "truncate_prompt_tokens": null}));
    assert_eq!(scripted.row()["requests"], 4);
}

#[test]
fn the_totals_count_every_reply_with_usage_whether_joined_or_not() {
    let scripted = ScriptedParity::start();
    scripted
        .engine
        .script(ScriptedReply::whole(json_reply("200 OK", "", &fine(48))));
    scripted.send(&json!({}));
    scripted.send(&json!({"prompt": "some text that no tokenizer is known for"}));
    assert_eq!(scripted.counted("warmroute_actual_cached_tokens_total"), 96);
    assert_eq!(scripted.counted("warmroute_parity_requests_total"), 1);
}

#[test]
fn replies_of_an_engine_that_omits_zeros_are_joined_too() {
    let scripted = ScriptedParity::start();
    scripted
        .engine
        .script(ScriptedReply::whole(json_reply("200 OK", "", &fine(48))));
    scripted.send(&json!({}));
    let usage = json!({"prompt_tokens": 64, "completion_tokens": 1, "prompt_tokens_details": null});
    let left_out =
        json!({"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}], "usage": usage});
    scripted.engine.script(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        &left_out.to_string(),
    )));
    scripted.send(&json!({}));
    let row = scripted.row();
    assert_eq!(
        (&row["requests"], &row["joined"], &row["actual_tokens"]),
        (&json!(2), &json!(2), &json!(48)),
        "{row}"
    );
    assert_eq!(scripted.counted("warmroute_parity_requests_total"), 2);
}

#[test]
fn the_usage_of_a_stream_counts_at_any_position_and_a_request_counts_once() {
    let scripted = ScriptedParity::start();
    let token = r#"{"choices":[{"index":0,"text":"x","finish_reason":null}],"usage":null}"#;
    let (token, last) = (
        format!("data: {token}\n\n"),
        format!("data: {}\n\n", fine(48)),
    );
    let pieces = [
        token.as_bytes(),
        token.as_bytes(),
        last.as_bytes(),
        b"data: [DONE]\n\n",
    ];
    scripted.engine.once(ScriptedReply::whole(json_reply(
        "503 Full",
        "retry-after: 0\r\n",
        "{}",
    )));
    scripted
        .engine
        .once(ScriptedReply::whole(stream_reply(&pieces)));
    assert_eq!(scripted.send(&json!({"stream": true})), 200);
    assert_eq!(scripted.engine.requests(), 2, "it was tried again");
    let row = scripted.row();
    assert_eq!(
        (&row["requests"], &row["joined"], &row["actual_tokens"]),
        (&json!(1), &json!(1), &json!(48)),
        "{row}"
    );
    // Without usage it is counted but not joined.
    scripted.engine.once(ScriptedReply::whole(stream_reply(&[
        token.as_bytes(),
        b"data: [DONE]\n\n",
    ])));
    scripted.send(&json!({"stream": true}));
    let row = scripted.row();
    assert_eq!(
        (&row["requests"], &row["joined"]),
        (&json!(2), &json!(1)),
        "{row}"
    );
}

#[test]
fn a_worker_without_events_drifts_and_stays_predicted() {
    let scripted = ScriptedParity::start();
    // The router predicts hits from the second request on; this engine caches nothing.
    (0..5).for_each(|_| assert_eq!(scripted.send(&json!({})), 200));
    let row = scripted.row();
    assert_eq!(row["state"], "drifting", "{row}");
    assert!(row["over_ratio"].as_f64() > Some(0.5), "{row}");
    (0..10).for_each(|_| assert_eq!(scripted.send(&json!({})), 200));
    assert_eq!(scripted.row()["state"], "drifting");
    assert_eq!(scripted.router.workers()[0]["cache_source"], "predicted");
    assert_eq!(scripted.router.workers()[0]["parity"], "drifting");
}
