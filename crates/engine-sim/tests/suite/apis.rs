//! The other APIs: responses, messages, scores.

use serde_json::{Value, json};

use crate::support::{chunks, engine, post};

fn types(events: &[Value]) -> Vec<&str> {
    let mut types: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    types.dedup();
    types
}

fn joined_deltas(events: &[Value], kind: &str) -> String {
    events
        .iter()
        .filter(|event| event["type"] == kind)
        .map(|event| event["delta"].as_str().unwrap())
        .collect()
}

fn function() -> Value {
    json!({"type": "function", "name": "get_time", "parameters": {
        "type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"],
    }})
}

#[tokio::test]
async fn a_response_has_its_output_and_usage_and_streams_in_openais_order() {
    let engine = engine("--no-kv-events").await;
    let mut body = json!({"model": "sim", "input": "Hello", "instructions": "Be brief", "max_output_tokens": 6});
    let plain = post(&engine, "/v1/responses", &body).await.json();
    assert_eq!(
        (&plain["object"], &plain["status"]),
        (&json!("response"), &json!("incomplete"))
    );
    assert_eq!(plain["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(plain["usage"]["output_tokens"], 6);
    let text = plain["output"][0]["content"][0]["text"].as_str().unwrap();
    body["stream"] = json!(true);
    let events = chunks(&post(&engine, "/v1/responses", &body).await);
    let order = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(types(&events), order);
    let numbers: Vec<_> = events
        .iter()
        .map(|event| event["sequence_number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(joined_deltas(&events, "response.output_text.delta"), text);
    let last = &events.last().unwrap()["response"];
    assert_eq!(
        (&last["output"][0]["content"], &last["status"]),
        (&plain["output"][0]["content"], &json!("incomplete"))
    );
    engine.stop().await;
}

#[tokio::test]
async fn a_response_calls_functions_and_accepts_their_output() {
    let engine = engine("--no-kv-events").await;
    let mut body = json!({"model": "sim", "input": [{"role": "user", "content": "get_time please"}], "tools": [function()]});
    let call = post(&engine, "/v1/responses", &body).await.json()["output"][0].clone();
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("function_call"), &json!("get_time"))
    );
    body["stream"] = json!(true);
    let events = chunks(&post(&engine, "/v1/responses", &body).await);
    assert_eq!(
        joined_deltas(&events, "response.function_call_arguments.delta"),
        call["arguments"].as_str().unwrap()
    );
    assert_eq!(*types(&events).last().unwrap(), "response.completed");
    body["stream"] = json!(false);
    let output =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "noon"});
    body["input"].as_array_mut().unwrap().extend([call, output]);
    let answer = post(&engine, "/v1/responses", &body).await.json();
    assert_eq!(answer["output"][0]["type"], "message");
    engine.stop().await;
}

#[tokio::test]
async fn a_response_can_be_continued_unless_it_is_unknown_or_not_stored() {
    let engine = engine("--no-kv-events").await;
    let send = async |input: &str, more: Value| {
        let mut body = json!({"model": "sim", "input": input, "max_output_tokens": 4});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        post(&engine, "/v1/responses", &body).await
    };
    let first = send("One", json!({})).await.json();
    let second = send("Two", json!({"previous_response_id": first["id"]}))
        .await
        .json();
    let alone = send("Two", json!({})).await.json();
    let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().unwrap();
    assert!(
        tokens(&second) > tokens(&alone) + 4,
        "the first turn and its reply are in the prompt"
    );
    assert_eq!(second["previous_response_id"], first["id"]);
    let third = send("Three", json!({"previous_response_id": second["id"]}))
        .await
        .json();
    assert!(tokens(&third) > tokens(&second) + 4);

    let unstored = send("One", json!({"store": false})).await.json();
    for id in [json!("resp_nothing"), unstored["id"].clone()] {
        let refused = send("Two", json!({"previous_response_id": id})).await;
        assert_eq!(
            (refused.status, &refused.json()["error"]["param"]),
            (404, &json!("previous_response_id"))
        );
    }
    engine.stop().await;
}

#[tokio::test]
async fn messages_are_served_only_if_the_engine_is_configured_for_them() {
    let engine = engine("--no-kv-events").await;
    let body =
        json!({"model": "sim", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]});
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        assert_eq!(post(&engine, path, &body).await.status, 404);
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_message_has_blocks_and_anthropics_counts_and_streams_in_its_order() {
    let engine = engine("--no-kv-events --anthropic --block-size 4").await;
    let mut body = json!({
        "model": "sim", "max_tokens": 40, "system": [{"type": "text", "text": "Be brief"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "messages": [{"role": "user", "content": "Hello there"}],
    });
    let plain = post(&engine, "/v1/messages", &body).await.json();
    assert_eq!(
        (&plain["type"], &plain["stop_reason"]),
        (&json!("message"), &json!("max_tokens"))
    );
    let [thinking, text] = plain["content"].as_array().unwrap().as_slice() else {
        panic!("{plain}")
    };
    assert_eq!(
        (&thinking["type"], &text["type"]),
        (&json!("thinking"), &json!("text"))
    );
    let counted = post(&engine, "/v1/messages/count_tokens", &body)
        .await
        .json();
    assert_eq!(
        (
            &plain["usage"]["input_tokens"],
            &plain["usage"]["output_tokens"]
        ),
        (&counted["input_tokens"], &json!(40))
    );

    body["stream"] = json!(true);
    let events = chunks(&post(&engine, "/v1/messages", &body).await);
    let block = [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    ];
    let order = [
        &["message_start"],
        &block[..],
        &block[..],
        &["message_delta", "message_stop"],
    ]
    .concat();
    assert_eq!(types(&events), order);
    let delta = |field: &str| -> String {
        events
            .iter()
            .filter_map(|event| event["delta"][field].as_str())
            .collect()
    };
    assert_eq!(
        (&json!(delta("thinking")), &json!(delta("text"))),
        (&thinking["thinking"], &text["text"])
    );
    let usage = &events[events.len() - 2]["usage"];
    assert_eq!(usage["output_tokens"], 40);
    let whole = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted["input_tokens"], whole);
    assert!(
        usage["cache_read_input_tokens"].as_u64().unwrap() > 0,
        "the first request left its blocks"
    );
    engine.stop().await;
}

#[tokio::test]
async fn a_message_uses_tools_and_accepts_their_results() {
    let engine = engine("--no-kv-events --anthropic").await;
    let tool = json!({"name": "get_time", "input_schema": function()["parameters"]});
    let mut body = json!({
        "model": "sim", "max_tokens": 200, "tools": [tool], "messages": [{"role": "user", "content": "get_time please"}],
    });
    let used = post(&engine, "/v1/messages", &body).await.json();
    assert_eq!(used["stop_reason"], "tool_use");
    let block = &used["content"][0];
    assert!(
        block["type"] == "tool_use" && block["input"]["zone"].is_string(),
        "{block}"
    );
    body["stream"] = json!(true);
    let events = chunks(&post(&engine, "/v1/messages", &body).await);
    let input: String = events
        .iter()
        .filter_map(|event| event["delta"]["partial_json"].as_str())
        .collect();
    assert_eq!(
        serde_json::from_str::<Value>(&input).unwrap(),
        block["input"]
    );
    body["stream"] = json!(false);
    let result = json!({"type": "tool_result", "tool_use_id": block["id"], "content": "noon"});
    body["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": used["content"]}),
        json!({"role": "user", "content": [result]}),
    ]);
    let answer = post(&engine, "/v1/messages", &body).await.json();
    assert_eq!(
        (&answer["content"][0]["type"], &answer["stop_reason"]),
        (&json!("text"), &json!("end_turn"))
    );
    engine.stop().await;
}

#[tokio::test]
async fn message_errors_have_anthropics_shape() {
    let engine = engine("--no-kv-events --anthropic").await;
    let turns = json!([{"role": "user", "content": "Hi"}]);
    let image = json!([{"role": "user", "content": [{"type": "image"}]}]);
    for (status, kind, body) in [
        (
            404,
            "not_found_error",
            json!({"model": "nope", "max_tokens": 5, "messages": turns}),
        ),
        (
            400,
            "invalid_request_error",
            json!({"model": "sim", "messages": turns}),
        ),
        (
            400,
            "invalid_request_error",
            json!({"model": "sim", "max_tokens": 5, "messages": []}),
        ),
        (
            400,
            "invalid_request_error",
            json!({"model": "sim", "max_tokens": 5, "messages": image}),
        ),
    ] {
        let reply = post(&engine, "/v1/messages", &body).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["type"]),
            (status, &json!(kind)),
            "{body}"
        );
        assert_eq!(reply.json()["type"], "error");
    }
    engine.stop().await;
}

#[tokio::test]
async fn scores_and_ranks_are_functions_of_the_texts() {
    let engine = engine("--no-kv-events").await;
    let body = json!({"model": "sim", "query": "warm", "documents": ["a", "b", {"text": "c"}]});
    let reply = post(&engine, "/v1/rerank", &body).await.json();
    let results = reply["results"].as_array().unwrap();
    let score = |row: &Value| row["relevance_score"].as_f64().unwrap();
    assert!(results.len() == 3 && results.is_sorted_by(|one, other| score(one) >= score(other)));
    let mut top = body;
    top["top_n"] = json!(1);
    assert_eq!(
        post(&engine, "/rerank", &top).await.json()["results"],
        json!([results[0]])
    );
    let scored = json!({"model": "sim", "text_1": "warm", "text_2": ["a", "b", "c"]});
    let scored = post(&engine, "/v1/score", &scored).await.json();
    for row in results {
        let index = usize::try_from(row["index"].as_u64().unwrap()).unwrap();
        assert_eq!(scored["data"][index]["score"], row["relevance_score"]);
    }
    let uneven = json!({"model": "sim", "text_1": ["a", "b"], "text_2": ["a"]});
    assert_eq!(post(&engine, "/v1/score", &uneven).await.status, 400);
    engine.stop().await;
}
