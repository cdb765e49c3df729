//! Tool calls, JSON by schema, reasoning, stop strings, choices and logprobs in chats.

use serde_json::{Value, json};

use crate::support::{chat, chunks, engine, joined, post, streamed};

fn weather() -> Value {
    json!({"type": "function", "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 3}},
            "required": ["city", "unit", "days"],
        },
    }})
}

fn time() -> Value {
    json!({"type": "function", "function": {
        "name": "get_time", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
    }})
}

/// A chat without a limit.
fn open_chat(content: &str, more: Value) -> Value {
    let mut body = json!({"model": "sim", "messages": [{"role": "user", "content": content}]});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_tool_that_the_user_names_is_called_with_arguments_of_its_schema() {
    let engine = engine("--no-kv-events").await;
    let body = open_chat(
        "Please use get_weather now",
        json!({"tools": [time(), weather()]}),
    );
    let reply = post(&engine, "/v1/chat/completions", &body).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null)
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(
        (
            calls.len(),
            &calls[0]["type"],
            &calls[0]["function"]["name"]
        ),
        (1, &json!("function"), &json!("get_weather"))
    );
    let arguments: Value =
        serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(
        arguments["city"].is_string()
            && arguments["unit"] == "C"
            && arguments["days"].as_i64() >= Some(3)
    );
    assert!(
        reply["usage"]["completion_tokens"].as_u64().unwrap() > 10,
        "a call is made of tokens"
    );

    let again = post(&engine, "/v1/chat/completions", &body).await.json();
    assert_eq!(
        again["choices"], reply["choices"],
        "the same request, the same call"
    );
    engine.stop().await;
}

#[tokio::test]
async fn a_tool_result_is_answered_with_text() {
    let engine = engine("--no-kv-events --block-size 8").await;
    let mut body = open_chat("Please use get_weather now", json!({"tools": [weather()]}));
    let call =
        post(&engine, "/v1/chat/completions", &body).await.json()["choices"][0]["message"].clone();
    let result = json!({"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "12 degrees"});
    body["messages"]
        .as_array_mut()
        .unwrap()
        .extend([call, result]);
    let answer = post(&engine, "/v1/chat/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(
        !answer["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .is_empty()
    );
    engine.stop().await;
}

#[tokio::test]
async fn tool_choice_is_respected() {
    let engine = engine("--no-kv-events").await;
    let calls = async |more: Value| {
        let mut body = open_chat(
            "Try get_weather and get_time",
            json!({"tools": [weather(), time()]}),
        );
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let reply = post(&engine, "/v1/chat/completions", &body).await.json();
        let calls = reply["choices"][0]["message"]["tool_calls"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        calls
            .iter()
            .map(|call| call["function"]["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(calls(json!({})).await, ["get_weather", "get_time"]);
    assert_eq!(
        calls(json!({"parallel_tool_calls": false})).await,
        ["get_weather"]
    );
    assert_eq!(calls(json!({"tool_choice": "none"})).await, [""; 0]);
    let named = json!({"type": "function", "function": {"name": "get_time"}});
    assert_eq!(calls(json!({"tool_choice": named})).await, ["get_time"]);
    let silent = json!({"messages": [{"role": "user", "content": "Hello"}]});
    assert_eq!(calls(silent.clone()).await, [""; 0]);
    let mut required = silent;
    required["tool_choice"] = json!("required");
    assert_eq!(calls(required).await, ["get_weather"]);

    let unknown = open_chat(
        "Hi",
        json!({
            "tools": [time()], "tool_choice": {"type": "function", "function": {"name": "nothing"}},
        }),
    );
    let refused = post(&engine, "/v1/chat/completions", &unknown).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("tool_choice"))
    );
    engine.stop().await;
}

#[tokio::test]
async fn a_streamed_call_sends_its_name_first_and_joins_to_the_plain_reply() {
    let engine = engine("--no-kv-events").await;
    let body = open_chat(
        "Both get_weather and get_time",
        json!({"tools": [weather(), time()]}),
    );
    let plain = post(&engine, "/v1/chat/completions", &body).await.json()["choices"][0].clone();
    let chunks = chunks(&post(&engine, "/v1/chat/completions", &streamed(body)).await);
    let deltas: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert!(deltas.len() > 6, "{deltas:?}");
    for (index, call) in plain["message"]["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
    {
        let own: Vec<&Value> = deltas
            .iter()
            .filter(|delta| delta["index"] == index)
            .collect();
        assert_eq!(own[0]["id"], call["id"]);
        assert_eq!(
            own[0]["function"],
            json!({"name": call["function"]["name"], "arguments": ""})
        );
        let arguments: String = own
            .iter()
            .map(|delta| delta["function"]["arguments"].as_str().unwrap())
            .collect();
        assert_eq!(arguments, call["function"]["arguments"]);
    }
    let last = chunks
        .iter()
        .rev()
        .find(|chunk| chunk["choices"][0].is_object())
        .unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    engine.stop().await;
}

#[tokio::test]
async fn a_reply_has_the_requested_response_format() {
    let engine = engine("--no-kv-events").await;
    let schema =
        json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let by_format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
    for more in [
        json!({"response_format": by_format}),
        json!({"structured_outputs": {"json": schema}}),
        json!({"guided_json": schema.to_string()}),
    ] {
        let reply = post(
            &engine,
            "/v1/chat/completions",
            &open_chat("Hi", more.clone()),
        )
        .await
        .json();
        let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(
            serde_json::from_str::<Value>(text).unwrap()["n"].is_i64(),
            "{more}: {text}"
        );
        assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    }
    let object = open_chat("Hi", json!({"response_format": {"type": "json_object"}}));
    let reply = post(&engine, "/v1/chat/completions", &object).await.json();
    let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).unwrap().is_object());
    let choice =
        json!({"model": "sim", "prompt": "x", "structured_outputs": {"choice": ["yes", "no"]}});
    let reply = post(&engine, "/v1/completions", &choice).await.json();
    assert!(["yes", "no"].contains(&reply["choices"][0]["text"].as_str().unwrap()));

    let mut short = open_chat("Hi", json!({"response_format": by_format}));
    short["max_tokens"] = json!(2);
    let cut = post(&engine, "/v1/chat/completions", &short).await.json();
    assert_eq!(
        (
            &cut["choices"][0]["finish_reason"],
            &cut["usage"]["completion_tokens"]
        ),
        (&json!("length"), &json!(2))
    );
    engine.stop().await;
}

#[tokio::test]
async fn an_invalid_option_is_rejected_by_name() {
    let engine = engine("--no-kv-events").await;
    for (field, value) in [
        ("response_format", json!({"type": "xml"})),
        ("response_format", json!({"type": "json_schema"})),
        ("structured_outputs", json!({"regex": "a+"})),
        ("tool_choice", json!("sometimes")),
        ("stop", json!([""])),
        ("top_logprobs", json!(3)),
        ("n", json!(129)),
    ] {
        let mut body = chat("Hi", 2);
        body[field] = value.clone();
        let reply = post(&engine, "/v1/chat/completions", &body).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(field)),
            "{field}: {value}"
        );
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_stop_string_ends_the_reply_before_it() {
    let engine = engine("--no-kv-events").await;
    let whole = post(&engine, "/v1/chat/completions", &chat("Tell me", 12))
        .await
        .json();
    let text = whole["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    let stop = text.split_whitespace().nth(5).unwrap();
    let before = &text[..text.find(stop).unwrap()];
    let mut body = chat("Tell me", 12);
    body["stop"] = json!(["never said", stop]);
    let reply = post(&engine, "/v1/chat/completions", &body).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], before);
    assert_eq!(
        (
            &reply["choices"][0]["finish_reason"],
            &reply["choices"][0]["stop_reason"]
        ),
        (&json!("stop"), &json!(stop))
    );
    assert!(reply["usage"]["completion_tokens"].as_u64().unwrap() <= 6);
    let chunks = chunks(&post(&engine, "/v1/chat/completions", &streamed(body.clone())).await);
    assert_eq!(joined(&chunks, "content"), before);
    body["include_stop_str_in_output"] = json!(true);
    let with_stop = post(&engine, "/v1/chat/completions", &body).await.json();
    assert_eq!(
        with_stop["choices"][0]["message"]["content"],
        format!("{before}{stop}")
    );
    engine.stop().await;
}

#[tokio::test]
async fn reasoning_comes_before_the_content_and_counts_as_completion_tokens() {
    let engine = engine("--no-kv-events").await;
    for more in [
        json!({"chat_template_kwargs": {"enable_thinking": true}}),
        json!({"reasoning_effort": "low"}),
    ] {
        let body = open_chat("Think", more);
        let reply = post(&engine, "/v1/chat/completions", &body).await.json();
        let message = &reply["choices"][0]["message"];
        assert!(!message["reasoning_content"].as_str().unwrap().is_empty());
        assert_eq!(message["reasoning"], message["reasoning_content"]);
        assert!(!message["content"].as_str().unwrap().is_empty());
        assert!(
            reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
                .as_u64()
                .unwrap()
                > 5
        );
        let chunks = chunks(&post(&engine, "/v1/chat/completions", &streamed(body)).await);
        assert_eq!(
            joined(&chunks, "reasoning_content"),
            message["reasoning_content"]
        );
        assert_eq!(joined(&chunks, "content"), message["content"]);
    }
    let quiet = open_chat("Think", json!({"reasoning_effort": "none"}));
    let reply = post(&engine, "/v1/chat/completions", &quiet).await.json();
    assert_eq!(reply["choices"][0]["message"]["reasoning"], Value::Null);
    engine.stop().await;
}

#[tokio::test]
async fn several_choices_differ_and_share_one_prompt() {
    let engine = engine("--no-kv-events").await;
    let one = post(&engine, "/v1/chat/completions", &chat("Choose", 6))
        .await
        .json();
    let mut body = chat("Choose", 6);
    body["n"] = json!(3);
    let reply = post(&engine, "/v1/chat/completions", &body).await.json();
    let texts: Vec<&Value> = reply["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| &choice["message"]["content"])
        .collect();
    assert_eq!(
        (texts.len(), texts[0]),
        (3, &one["choices"][0]["message"]["content"])
    );
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);
    assert_eq!(
        reply["usage"]["prompt_tokens"],
        one["usage"]["prompt_tokens"]
    );
    assert_eq!(reply["usage"]["completion_tokens"], 18);
    let chunks = chunks(&post(&engine, "/v1/chat/completions", &streamed(body)).await);
    for (index, text) in texts.iter().enumerate() {
        let own: Vec<Value> = chunks
            .iter()
            .filter(|chunk| chunk["choices"][0]["index"] == index)
            .cloned()
            .collect();
        assert_eq!(joined(&own, "content"), **text);
    }
    engine.stop().await;
}

#[tokio::test]
async fn logprobs_contain_their_alternatives() {
    let engine = engine("--no-kv-events").await;
    let mut body = chat("Hi", 4);
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(2);
    let reply = post(&engine, "/v1/chat/completions", &body).await.json();
    let content = reply["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .clone();
    let text: String = content
        .iter()
        .map(|entry| entry["token"].as_str().unwrap())
        .collect();
    assert_eq!(
        (content.len(), text.trim()),
        (
            4,
            reply["choices"][0]["message"]["content"]
                .as_str()
                .unwrap()
                .trim()
        )
    );
    for entry in &content {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"]), (2, &entry["token"]));
        assert!(top[1]["logprob"].as_f64() < entry["logprob"].as_f64());
    }
    let chunks = chunks(&post(&engine, "/v1/chat/completions", &streamed(body)).await);
    let streamed: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(streamed, content);

    let body = json!({"model": "sim", "prompt": "x", "max_tokens": 3, "logprobs": 1});
    let reply = post(&engine, "/v1/completions", &body).await.json();
    let logprobs = &reply["choices"][0]["logprobs"];
    for list in ["text_offset", "token_logprobs", "tokens", "top_logprobs"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 3, "{list}");
    }
    engine.stop().await;
}
