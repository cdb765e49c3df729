//! Tenants: their keys, what they may use, and their limits.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    PieceGate, Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply,
    chunk, eventually, json_reply, stream_head, stream_reply,
};

const CHAT: &str = "/v1/chat/completions";

fn whole() -> ScriptedReply {
    let usage = json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10});
    let body = json!({"id": "c", "object": "chat.completion", "model": "m", "usage": usage,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}]});
    ScriptedReply::whole(json_reply("200 OK", "", &body.to_string()))
}

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hi"}]})
}

/// The head of a WebSocket conversation of tenant `a`.
const UPGRADE: [(&str, &str); 5] = [
    ("x-api-key", "sk-a"),
    ("connection", "upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA=="),
];

/// A router whose clients are tenants.
struct SharedRouter {
    router: Program,
    engine: ScriptedEngine,
}

impl SharedRouter {
    fn start(yaml: &str) -> Self {
        let engine = ScriptedEngine::start(whole());
        let router = Program::serve_with(yaml, &[engine.url()], &[]).ready(1);
        Self { router, engine }
    }

    fn post(&self, key: &str, path: &str, body: &Value) -> RawReply {
        self.post_with(key, path, body, &[])
    }

    fn post_with(&self, key: &str, path: &str, body: &Value, more: &[(&str, &str)]) -> RawReply {
        let bearer = format!("Bearer {key}");
        let headers = [&[("authorization", &*bearer)], more].concat();
        let body = body.to_string();
        RawClient::post_with(&self.router.data(), path, &headers, body.as_bytes())
    }

    fn get(&self, key: &str, path: &str) -> RawReply {
        let mut client = RawClient::connect(&self.router.data());
        client.send("GET", path, &[("x-router-key", key)], b"");
        client.reply()
    }

    fn delete(&self, key: &str, path: &str) -> RawReply {
        let mut client = RawClient::connect(&self.router.data());
        client.send("DELETE", path, &[("x-router-key", key)], b"");
        client.reply()
    }

    /// Sends a chat whose reply is a stream, and reads the reply's head.
    fn streaming(&self, key: &str) -> (RawClient, RawReply) {
        let mut body = chat("m");
        body["stream"] = json!(true);
        let mut client = RawClient::connect(&self.router.data());
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", &*bearer)];
        client.send("POST", CHAT, &headers, body.to_string().as_bytes());
        let head = client.head();
        (client, head)
    }

    fn tenant(&self, name: &str) -> Value {
        let reply = RawClient::get(&self.router.admin(), "/admin/tenants").json();
        let all = reply["tenants"].as_array().expect("a list");
        let found = all.iter().find(|tenant| tenant["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {reply}")).clone()
    }

    /// Waits until no request of a tenant runs.
    fn wait_for_place(&self, name: &str) {
        let is_free = || (self.tenant(name)["in_flight"] == 0).then_some(());
        eventually("the place is free", is_free);
    }
}

fn refused(reply: &RawReply, status: u16, code: &str) {
    let found = reply.error_code();
    let text = reply.text();
    assert_eq!((reply.status, &*found), (status, code), "{text}");
}

/// A stream in two pieces, of which the gate lets one through at a time.
fn gated(gate: &PieceGate) -> ScriptedReply {
    let event = |text: &str| {
        let delta = json!({"choices": [{"index": 0, "delta": {"content": text}}]});
        format!("data: {delta}\n\n")
    };
    let (first, second) = (event("a"), event("b"));
    let reply = stream_reply(&[first.as_bytes(), second.as_bytes(), b"data: [DONE]\n\n"]);
    let (begin, rest) = reply.split_at(stream_head().len() + chunk(first.as_bytes()).len());
    ScriptedReply::Gated(vec![begin.to_vec(), rest.to_vec()], gate.clone())
}

#[test]
#[contract("V31")]
fn a_tenant_has_as_many_running_requests_as_it_may_until_their_replies_end() {
    let shared = SharedRouter::start(
        "api_keys:\n- {name: a, key: sk-a, max_concurrent: 1}\n- {name: b, key: sk-b}\n",
    );
    let gate = PieceGate::new();
    shared.engine.once(gated(&gate));
    gate.open();
    let (mut client, head) = shared.streaming("sk-a");
    assert_eq!(head.status, 200);
    let limited = shared.post("sk-a", CHAT, &chat("m"));
    refused(&limited, 429, "concurrency_limited");
    assert_eq!(limited.header("retry-after"), Some("1"));
    assert_eq!(limited.header("x-ratelimit-limit"), Some("1"));
    assert_eq!(shared.post("sk-b", CHAT, &chat("m")).status, 200);
    assert_eq!(shared.tenant("a")["in_flight"], 1);
    gate.open();
    client.body(head);
    shared.wait_for_place("a");
    assert_eq!(shared.post("sk-a", CHAT, &chat("m")).status, 200);

    // A client that goes away frees its place too.
    let gate = PieceGate::new();
    shared.engine.once(gated(&gate));
    gate.open();
    drop(shared.streaming("sk-a"));
    shared.wait_for_place("a");
    assert_eq!(shared.post("sk-a", CHAT, &chat("m")).status, 200);
    let shown = shared.tenant("a");
    assert_eq!(
        (&shown["requests"], &shown["limited"]),
        (&json!(5), &json!(1))
    );
}

#[test]
#[contract("V31")]
fn a_tenant_has_as_many_streams_as_it_may_until_they_end() {
    let shared = SharedRouter::start(
        "tenants:\n  defaults: {streams: 1}\n  api_keys:\n  - {name: a, key: sk-a}\n  - {name: b, key: sk-b}\n",
    );
    let hold = || {
        let gate = PieceGate::new();
        shared.engine.once(gated(&gate));
        gate.open();
        let (client, head) = shared.streaming("sk-a");
        assert_eq!(head.status, 200);
        (gate, client, head)
    };
    let mut streamed = chat("m");
    streamed["stream"] = json!(true);
    let mut message = streamed.clone();
    message["max_tokens"] = json!(5);
    let response = json!({"model": "m", "input": "hi", "stream": true});
    // A cached and a shared reply would be a stream too.
    let mut repeatable = streamed.clone();
    repeatable["temperature"] = json!(0);

    let (gate, mut client, head) = hold();
    for (path, body) in [
        (CHAT, &streamed),
        (CHAT, &repeatable),
        ("/v1/messages", &message),
        ("/v1/responses", &response),
    ] {
        let full = shared.post("sk-a", path, body);
        assert_eq!(full.status, 429, "{path}: {}", full.text());
        assert_eq!(full.header("retry-after"), Some("1"), "{path}");
    }
    let full = shared.post("sk-a", CHAT, &streamed);
    refused(&full, 429, "tenant_streams_full");
    let mut socket = RawClient::connect(&shared.router.data());
    socket.send("GET", "/v1/realtime?model=m", &UPGRADE, b"");
    refused(&socket.reply(), 429, "tenant_streams_full");
    assert_eq!(shared.engine.requests(), 1, "no engine was asked");
    // Neither another reply of the tenant nor another tenant is held up.
    assert_eq!(shared.post("sk-a", CHAT, &chat("m")).status, 200);
    let open = PieceGate::new();
    (0..2).for_each(|_| open.open());
    shared.engine.once(gated(&open));
    assert_eq!(shared.post("sk-b", CHAT, &streamed).status, 200);
    let page = RawClient::get(&shared.router.admin(), "/metrics").text();
    let line = "warmroute_tenant_limited_total{tenant=\"a\",limit=\"streams\"} 6";
    assert!(page.lines().any(|there| there == line), "{page}");
    gate.open();
    client.body(head);
    shared.wait_for_place("a");

    // A client that goes away frees its place too.
    drop(hold());
    shared.wait_for_place("a");
    let (gate, mut client, head) = hold();
    gate.open();
    client.body(head);
}

#[test]
#[contract("V31")]
fn a_tenant_above_its_rate_is_told_when_to_try_again_and_no_other_notices() {
    let shared = SharedRouter::start(
        "api_keys:\n- {name: a, key: sk-a, rate_limit_rps: 0.01}\n- {name: b, key: sk-b, rate_limit_rps: 1000}\n",
    );
    assert_eq!(shared.post("sk-a", CHAT, &chat("m")).status, 200);
    for _ in 0..3 {
        let limited = shared.post("sk-a", CHAT, &chat("m"));
        refused(&limited, 429, "rate_limited");
        assert_eq!(limited.header("x-ratelimit-limit"), Some("0.01"));
        assert_eq!(limited.header("retry-after"), Some("60"));
        assert_eq!(shared.post("sk-b", CHAT, &chat("m")).status, 200);
    }
    assert_eq!(shared.engine.requests(), 4);
    let page = RawClient::get(&shared.router.admin(), "/metrics").text();
    for line in [
        "vllm_router_tenant_requests_total{tenant=\"a\"} 4",
        "vllm_router_tenant_rate_limited_total{tenant=\"a\"} 3",
        "warmroute_tenant_limited_total{tenant=\"a\",limit=\"rate\"} 3",
        "vllm_router_tenant_request_duration_seconds_count{tenant=\"b\"} 3",
    ] {
        assert!(page.lines().any(|there| there == line), "{line}\n{page}");
    }
}

/// Keys as a file of vLLM Router has them: `api_keys` at the top, every documented member, and no
/// other.
const VLLM_ROUTER_KEYS: &str = r#"api_keys:
  - key: "sk-team-a"
    name: "team-a"
    rate_limit_rps: 100
    max_concurrent: 50
    allowed_models: ["m", "llama-*"]
    enabled: true
    metadata: {owner: "alice"}
  - key: "sk-team-b"
    name: "team-b"
    rate_limit_rps: 0.01
    max_concurrent: 2
    allowed_models: ["llama-*"]
    enabled: true
    metadata: {}
  - key: "sk-team-c"
    name: "team-c"
    rate_limit_rps: 100
    max_concurrent: 50
    allowed_models: []
    enabled: false
    metadata: {}
"#;

#[test]
#[contract("V31", "V32", "V33", "V34")]
fn the_keys_of_a_vllm_router_file_are_used_as_they_are() {
    // The alias is a model with a name that the wildcard allows.
    let aliases = "models: {aliases: {llama-3: m}}\n";
    let shared = SharedRouter::start(&format!("{VLLM_ROUTER_KEYS}{aliases}"));
    for model in ["m", "llama-3"] {
        let served = shared.post("sk-team-a", CHAT, &chat(model));
        assert_eq!(served.status, 200, "{model}: {}", served.text());
    }
    let denied = shared.post("sk-team-a", CHAT, &chat("gpt"));
    refused(&denied, 403, "model_not_allowed");
    // The refused request has used up the rate of its tenant.
    let denied = shared.post("sk-team-b", CHAT, &chat("m"));
    refused(&denied, 403, "model_not_allowed");
    let limited = shared.post("sk-team-b", CHAT, &chat("llama-3"));
    refused(&limited, 429, "rate_limited");
    assert_eq!(limited.header("x-ratelimit-limit"), Some("0.01"));
    assert!(limited.header("retry-after").is_some());
    for key in ["sk-team-c", "sk-nobody"] {
        refused(&shared.post(key, CHAT, &chat("m")), 401, "invalid_api_key");
    }
    assert_eq!(shared.engine.requests(), 2);

    let team_a = shared.tenant("team-a");
    assert_eq!(team_a["metadata"], json!({"owner": "alice"}));
    assert_eq!(shared.tenant("team-c")["enabled"], false);
    eventually("the counts of both tenants", || {
        let page = RawClient::get(&shared.router.admin(), "/metrics").text();
        let lines = [
            "vllm_router_tenant_requests_total{tenant=\"team-a\"} 3",
            "vllm_router_tenant_request_duration_seconds_count{tenant=\"team-a\"} 3",
            "vllm_router_tenant_errors_total{tenant=\"team-a\"} 1",
            "vllm_router_tenant_rate_limited_total{tenant=\"team-a\"} 0",
            "vllm_router_tenant_tokens_total{tenant=\"team-a\",kind=\"prompt\"} 14",
            "vllm_router_tenant_tokens_total{tenant=\"team-a\",kind=\"completion\"} 6",
            "vllm_router_tenant_requests_total{tenant=\"team-b\"} 2",
            "vllm_router_tenant_rate_limited_total{tenant=\"team-b\"} 1",
        ];
        let has = |line: &&str| page.lines().any(|there| there == *line);
        lines.iter().all(has).then_some(())
    });
}

/// Bodies of the routes that read a body of JSON, each with its model.
fn bodies(model: &str) -> Vec<(&'static str, Value)> {
    let prompt = json!({"model": model, "prompt": "hi"});
    let input = json!({"model": model, "input": "hi"});
    let documents = json!({"model": model, "query": "q", "documents": ["a"]});
    let texts = json!({"model": model, "text_1": "a", "text_2": "b"});
    let mut messages = chat(model);
    messages["max_tokens"] = json!(5);
    let ids = json!({"model": model, "token_ids": [1], "sampling_params": {}});
    let batch = json!({"model": model, "messages": [[{"role": "user", "content": "hi"}]]});
    vec![
        (CHAT, chat(model)),
        ("/v1/chat/completions/batch", batch),
        ("/v1/completions", prompt.clone()),
        ("/v1/embeddings", input.clone()),
        ("/v1/rerank", documents.clone()),
        ("/v1/score", texts.clone()),
        ("/v2/rerank", documents.clone()),
        ("/rerank", documents),
        ("/score", texts),
        ("/classify", input.clone()),
        ("/pooling", input.clone()),
        ("/v1/audio/speech", input.clone()),
        ("/v1/images/generations", prompt.clone()),
        ("/v1/responses", input.clone()),
        ("/v1/responses/input_tokens", input),
        ("/v1/messages", messages.clone()),
        ("/anthropic/v1/messages", messages.clone()),
        ("/v1/messages/count_tokens", messages),
        ("/inference/v1/generate", ids.clone()),
        ("/generate", json!({"model": model, "text": "hi"})),
        ("/tokenize", prompt.clone()),
        ("/detokenize", json!({"model": model, "tokens": [1]})),
        ("/v1/route", prompt.clone()),
        ("/v1/route/potential_loads", prompt),
    ]
}

fn is_model_refusal(reply: &RawReply) -> bool {
    let error = reply.json()["error"].clone();
    let text = error["message"].as_str().unwrap_or_default().to_owned();
    reply.status == 403 && error["type"] == "permission_error" && text.contains("model")
}

#[test]
#[contract("V34", "S12")]
fn a_denied_model_is_refused_on_every_route_that_names_one() {
    let shared = SharedRouter::start(
        "api_keys:\n- {name: a, key: sk-a, allowed_models: [other, 'mm*']}\n- {name: b, key: sk-b}\n\
         models: {aliases: {nick: m, mmm: m}}\n",
    );
    let json_routes = bodies("m");
    let listed: Vec<&str> = json_routes.iter().map(|(path, _)| *path).collect();
    for route in gateway::ROUTES {
        if route.body == gateway::BodyMode::Limited {
            assert!(listed.contains(&route.path), "{} is not tried", route.path);
        }
    }
    for (path, body) in &json_routes {
        let denied = shared.post("sk-a", path, body);
        assert!(is_model_refusal(&denied), "{path}: {}", denied.text());
    }
    let form = b"--e\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--e--\r\n";
    let kind = ("content-type", "multipart/form-data; boundary=e");
    for route in gateway::ROUTES {
        if route.body == gateway::BodyMode::Form {
            let headers = [("x-api-key", "sk-a"), kind];
            let data = shared.router.data();
            let denied = RawClient::post_with(&data, route.path, &headers, form);
            refused(&denied, 403, "model_not_allowed");
        }
    }
    let mut socket = RawClient::connect(&shared.router.data());
    socket.send("GET", "/v1/realtime?model=m", &UPGRADE, b"");
    refused(&socket.reply(), 403, "model_not_allowed");
    refused(
        &shared.get("sk-a", "/v1/models/m"),
        403,
        "model_not_allowed",
    );
    assert_eq!(shared.engine.requests(), 0, "no engine was asked");
}

#[test]
#[contract("V34", "S12")]
fn the_name_that_the_client_sends_decides_whatever_the_model_is_called_later() {
    let shared = SharedRouter::start(
        "api_keys:\n- {name: a, key: sk-a, allowed_models: [other, 'mm*']}\n- {name: b, key: sk-b, allowed_models: [m]}\n\
         models: {aliases: {nick: m, mmm: m}}\n",
    );
    assert_eq!(shared.post("sk-a", CHAT, &chat("mmm")).status, 200);
    assert_eq!(shared.post("sk-b", CHAT, &chat("m")).status, 200);
    for (key, model) in [("sk-a", "nick"), ("sk-a", "m"), ("sk-b", "nick")] {
        refused(
            &shared.post(key, CHAT, &chat(model)),
            403,
            "model_not_allowed",
        );
    }
    let nameless = json!({"messages": [{"role": "user", "content": "hi"}]});
    refused(
        &shared.post("sk-a", CHAT, &nameless),
        403,
        "model_not_allowed",
    );
    let headers = [("x-api-key", "sk-a")];
    for twice in [
        r#"{"model":"m","model":"other","messages":[{"role":"user","content":"hi"}]}"#,
        r#"{"model":"other","model":"m","messages":[{"role":"user","content":"hi"}]}"#,
        r#"{"model":"other","mod\u0065l":"m","messages":[{"role":"user","content":"hi"}]}"#,
    ] {
        let data = shared.router.data();
        let reply = RawClient::post_with(&data, CHAT, &headers, twice.as_bytes());
        assert!([400, 403].contains(&reply.status), "{}", reply.text());
    }
    assert_eq!(shared.engine.requests(), 2);
    let ids = |key: &str| {
        let list = shared.get(key, "/v1/models").json();
        let models = list["data"].as_array().expect("a list").clone();
        let ids: Vec<String> = models.iter().map(|model| model["id"].to_string()).collect();
        ids.join(",")
    };
    assert_eq!(ids("sk-a"), "\"mmm\"");
    assert_eq!(ids("sk-b"), "\"m\"");
}

#[test]
#[contract("V31", "V33")]
fn a_key_opens_only_the_routes_of_its_scopes_and_probes_need_none() {
    let shared = SharedRouter::start(
        "api_keys:\n- {name: chat, key: sk-chat, scopes: [chat]}\n- {name: lists, key: sk-lists, scopes: [models]}\n- \
         {name: off, key: sk-off, enabled: false}\n- {name: old, key: sk-old, expires_at: '2020-01-01T00:00:00Z'}\n",
    );
    assert_eq!(shared.post("sk-chat", CHAT, &chat("m")).status, 200);
    assert_eq!(shared.get("sk-lists", "/v1/models").status, 200);
    refused(&shared.get("sk-chat", "/v1/models"), 403, "scope_missing");
    for (path, body) in bodies("m") {
        let denied = shared.post("sk-lists", path, &body);
        assert_eq!(denied.status, 403, "{path}: {}", denied.text());
    }
    for key in ["sk-off", "sk-old", "sk-none"] {
        refused(&shared.post(key, CHAT, &chat("m")), 401, "invalid_api_key");
    }
    for probe in ["/livez", "/readyz", "/health"] {
        assert_eq!(RawClient::get(&shared.router.data(), probe).status, 200);
    }
    assert_eq!(shared.engine.requests(), 1);
}

#[test]
#[contract("S14")]
fn keys_that_are_switched_off_or_expired_look_like_unknown_ones_to_the_end() {
    let keys = "api_keys:\n- {name: a, key: sk-a}\n- {name: off, key: sk-off, enabled: false}\n- {name: old, key: \
                sk-old, expires_at: '2020-01-01T00:00:00Z'}\n";
    // A router for each key: wrong keys of this address count together.
    let refusals = |key: &str| {
        let shared = SharedRouter::start(keys);
        let parts = |_| {
            let reply = shared.post(key, CHAT, &chat("m"));
            let own = |name: &str| ["x-request-id", "x-warmroute-decision", "date"].contains(&name);
            let headers = reply.headers.iter().filter(|(name, _)| !own(name)).cloned();
            let mut body = reply.json();
            body["error"]["request_id"] = Value::Null;
            (reply.status, headers.collect::<Vec<_>>(), body)
        };
        // As many as an address may send before it has to wait.
        let all: Vec<_> = (0..11).map(parts).collect();
        let beyond: Vec<u16> = (0..100).map(|number| parts(number).0).collect();
        assert_eq!(beyond.last(), Some(&429));
        all
    };
    let unknown = refusals("sk-none");
    assert!(unknown.iter().all(|(status, ..)| *status == 401));
    assert_eq!(refusals("sk-off"), unknown);
    assert_eq!(refusals("sk-old"), unknown);
}

#[test]
fn one_of_several_tenants_overrides_decisions_only_where_that_is_granted() {
    let shared = SharedRouter::start(
        "api_keys:\n- {name: a, key: sk-a}\n- {name: b, key: sk-b, scopes: [chat, route, overrides]}\n",
    );
    for (name, value) in [
        ("x-warmroute-worker", "w"),
        ("x-warmroute-policy", "round_robin"),
        ("x-warmroute-overlap-weight", "1"),
        ("x-warmroute-temperature", "1"),
        ("x-warmroute-priority", "100"),
    ] {
        let denied = shared.post_with("sk-a", CHAT, &chat("m"), &[(name, value)]);
        refused(&denied, 403, "field_not_allowed");
        assert_eq!(denied.json()["error"]["param"], name);
    }
    let priority = [("x-warmroute-priority", "5")];
    assert_eq!(
        shared.post_with("sk-b", CHAT, &chat("m"), &priority).status,
        200
    );
    let body = json!({"model": "m", "prompt": "hi", "policy": "round_robin"});
    for (path, field, value) in [
        ("/v1/route", "policy", json!("round_robin")),
        ("/v1/route", "exclude", json!(["w"])),
        ("/v1/route/potential_loads", "worker", json!("w")),
        ("/v1/completions", "priority", json!(-5)),
        ("/v1/completions", "data_parallel_rank", json!(0)),
    ] {
        let mut body = json!({"model": "m", "prompt": "hi"});
        body[field] = value;
        let denied = shared.post("sk-a", path, &body);
        refused(&denied, 403, "field_not_allowed");
        assert_eq!(denied.json()["error"]["param"], field);
    }
    assert_eq!(shared.post("sk-b", "/v1/route", &body).status, 200);
    shared
        .router
        .configure("api_keys: [{name: a, key: sk-a}]\n");
    let reload = RawClient::post(&shared.router.admin(), "/admin/reload", b"{}");
    assert_eq!(reload.status, 200, "{}", reload.text());
    let alone = shared.post_with("sk-a", CHAT, &chat("m"), &priority);
    assert_eq!(alone.status, 200, "it is the only tenant now");
}

#[test]
#[contract("V34", "S12")]
fn an_adapter_is_a_model_too_wherever_a_body_names_it() {
    let shared = SharedRouter::start("api_keys: [{name: a, key: sk-a, allowed_models: [m]}]\n");
    for (path, field, value, code) in [
        ("/generate", "lora_path", json!("paid"), "model_not_allowed"),
        (
            "/generate",
            "lora_path",
            json!(["m", "paid"]),
            "model_not_allowed",
        ),
        (CHAT, "lora_path", json!("paid"), "model_not_allowed"),
        (
            CHAT,
            "lora_request",
            json!({"lora_path": "/x"}),
            "field_not_allowed",
        ),
    ] {
        let mut body = chat("m");
        body["text"] = json!("hi");
        body[field] = value;
        refused(&shared.post("sk-a", path, &body), 403, code);
    }
    let mut socket = RawClient::connect(&shared.router.data());
    let target = "/v1/realtime?model=m&m%6fdel=paid";
    socket.send("GET", target, &UPGRADE, b"");
    refused(&socket.reply(), 400, "duplicate_key");
    assert_eq!(shared.engine.requests(), 0);
}

#[test]
#[contract("S45", "V31")]
fn a_reservation_is_its_tenants_own_and_takes_one_of_its_places() {
    let shared = SharedRouter::start(
        "api_keys:\n- {name: a, key: sk-a, max_concurrent: 1}\n- {name: b, key: sk-b}\n",
    );
    let body = json!({"model": "m", "prompt": "hi", "request_id": "r1"});
    let reserved = shared.post("sk-a", "/v1/route", &body);
    assert_eq!(reserved.status, 200, "{}", reserved.text());
    let complete = "/v1/route/r1/prefill_complete";
    let unknown = shared.post("sk-b", complete, &json!({}));
    refused(&unknown, 404, "reservation_not_found");
    refused(
        &shared.delete("sk-b", "/v1/route/r1"),
        404,
        "reservation_not_found",
    );
    let same_id = shared.post("sk-b", "/v1/route", &body);
    assert_eq!(
        same_id.status,
        200,
        "it is another tenant's id: {}",
        same_id.text()
    );
    refused(
        &shared.post("sk-a", CHAT, &chat("m")),
        429,
        "concurrency_limited",
    );
    assert_eq!(shared.tenant("a")["in_flight"], 1);
    assert_eq!(shared.tenant("b")["in_flight"], 1);
    // What ends it is not held up by the limit that it fills.
    assert_eq!(shared.post("sk-a", complete, &json!({})).status, 200);
    assert_eq!(shared.delete("sk-a", "/v1/route/r1").status, 200);
    shared.wait_for_place("a");
    assert_eq!(shared.post("sk-a", CHAT, &chat("m")).status, 200);
    assert_eq!(shared.delete("sk-b", "/v1/route/r1").status, 200);
    shared.wait_for_place("b");
}

#[test]
#[contract("S45")]
fn a_stored_response_is_found_and_continued_by_its_own_tenant_only() {
    let shared = SharedRouter::start("api_keys:\n- {name: a, key: sk-a}\n- {name: b, key: sk-b}\n");
    let stored = json!({"id": "resp_1", "object": "response", "model": "m", "status": "completed",
        "output": [], "usage": {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}});
    shared.engine.once(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        &stored.to_string(),
    )));
    let first = json!({"model": "m", "input": "hi", "store": true});
    assert_eq!(shared.post("sk-a", "/v1/responses", &first).status, 200);
    let asked = shared.engine.requests();
    for path in ["/v1/responses/resp_1", "/v1/responses/resp_1/input_items"] {
        refused(&shared.get("sk-b", path), 404, "response_not_found");
    }
    refused(
        &shared.delete("sk-b", "/v1/responses/resp_1"),
        404,
        "response_not_found",
    );
    let next = json!({"model": "m", "input": "more", "previous_response_id": "resp_1"});
    for path in ["/v1/responses", "/v1/responses/input_tokens"] {
        let denied = shared.post("sk-b", path, &next);
        refused(&denied, 404, "response_not_found");
        assert_eq!(denied.json()["error"]["param"], "previous_response_id");
    }
    let chosen = json!({"model": "m", "input": "hi", "request_id": "resp_1"});
    refused(
        &shared.post("sk-b", "/v1/responses", &chosen),
        403,
        "field_not_allowed",
    );
    assert_eq!(shared.engine.requests(), asked, "no engine was asked");
    let own = json_reply("200 OK", "", &stored.to_string());
    shared.engine.answer_bytes("/v1/responses/resp_1", own);
    assert_eq!(shared.get("sk-a", "/v1/responses/resp_1").status, 200);
    assert_eq!(shared.post("sk-a", "/v1/responses", &next).status, 200);
}

#[test]
#[contract("V33", "S6")]
fn removing_the_last_key_closes_the_api_until_the_next_start() {
    let shared = SharedRouter::start("api_keys: [{name: a, key: sk-a}]\n");
    shared.router.configure("");
    let reload = RawClient::post(&shared.router.admin(), "/admin/reload", b"{}");
    assert_eq!(reload.status, 200, "{}", reload.text());
    refused(
        &shared.post("sk-a", CHAT, &chat("m")),
        401,
        "invalid_api_key",
    );
    refused(
        &RawClient::get(&shared.router.data(), "/v1/models"),
        401,
        "missing_api_key",
    );
    shared
        .router
        .configure("api_keys: [{name: a, key: sk-a}]\n");
    let reload = RawClient::post(&shared.router.admin(), "/admin/reload", b"{}");
    assert_eq!(reload.status, 200, "{}", reload.text());
    assert_eq!(shared.post("sk-a", CHAT, &chat("m")).status, 200);
}

#[test]
fn the_list_of_tenants_has_a_limit_and_finds_one_by_name() {
    let shared = SharedRouter::start("api_keys:\n- {name: a, key: sk-a}\n- {name: b, key: sk-b}\n");
    let names = |query: &str| {
        let list = RawClient::get(&shared.router.admin(), &format!("/admin/tenants{query}"));
        let list = list.json();
        let all = list["tenants"].as_array().expect("a list").clone();
        all.iter()
            .map(|tenant| tenant["name"].to_string())
            .collect::<String>()
    };
    assert_eq!(names(""), "\"a\"\"b\"");
    assert_eq!(names("?limit=1"), "\"a\"");
    assert_eq!(names("?name=b"), "\"b\"");
    let wrong = RawClient::get(&shared.router.admin(), "/admin/tenants?limit=x");
    refused(&wrong, 400, "invalid_request");
}

#[test]
#[contract("V32")]
fn a_reload_replaces_keys_and_ends_no_running_request() {
    let shared = SharedRouter::start(
        "api_keys:\n- {name: a, key: sk-old, max_concurrent: 1}\n- {name: b, key: sk-b}\n",
    );
    let gate = PieceGate::new();
    shared.engine.once(gated(&gate));
    gate.open();
    let (mut client, head) = shared.streaming("sk-old");
    let next = "api_keys:\n- {name: a, key: sk-new, max_concurrent: 1, metadata: {team: x}}\n- {name: c, key: sk-c}\n";
    shared.router.configure(next);
    let reload = RawClient::post(&shared.router.admin(), "/admin/reload", b"{}").json();
    assert_eq!(reload["changed"], json!(["tenants.api_keys"]), "{reload}");
    for gone in ["sk-old", "sk-b"] {
        refused(&shared.post(gone, CHAT, &chat("m")), 401, "invalid_api_key");
    }
    let limited = shared.post("sk-new", CHAT, &chat("m"));
    refused(&limited, 429, "concurrency_limited");
    assert_eq!(shared.post("sk-c", CHAT, &chat("m")).status, 200);
    gate.open();
    let whole = client.body(head);
    assert!(whole.text().contains("[DONE]"), "{}", whole.text());
    shared.wait_for_place("a");
    assert_eq!(shared.post("sk-new", CHAT, &chat("m")).status, 200);
    let shown = shared.tenant("a");
    assert_eq!(shown["metadata"], json!({"team": "x"}));
    assert_eq!(shown["enabled"], true);
    let list = "/admin/decisions?tenant=c";
    let eventually_listed = || {
        let list = RawClient::get(&shared.router.admin(), list).json();
        let listed = list["decisions"].as_array()?;
        (listed.len() == 1 && listed[0]["tenant"] == "c").then_some(())
    };
    eventually("the receipt has the tenant", eventually_listed);
    assert_eq!(
        (&shown["prompt_tokens"], &shown["completion_tokens"]),
        (&json!(7), &json!(3))
    );
    let config = RawClient::get(&shared.router.admin(), "/admin/config").text();
    assert!(!config.contains("sk-new"), "{config}");
    refuse_bad_keys(&shared);
}

/// A file with a wrong tenant changes nothing.
fn refuse_bad_keys(shared: &SharedRouter) {
    shared
        .router
        .configure("api_keys: [{name: a}, {name: a, key: sk-x}]\n");
    let reload = RawClient::post(&shared.router.admin(), "/admin/reload", b"{}");
    assert_eq!(reload.status, 400, "{}", reload.text());
    assert_eq!(shared.post("sk-new", CHAT, &chat("m")).status, 200);
}

/// Runs `warmroute keys`, and returns what it prints.
fn keys(args: &[&str]) -> String {
    let done = Program::finish(&[&["keys"], args].concat());
    assert_eq!(done.code, Some(0), "{args:?}: {}", done.stderr);
    done.stdout.trim().to_owned()
}

#[test]
#[contract("S43")]
fn fields_that_control_engines_reach_them_from_an_only_tenant_or_one_with_the_permission() {
    let list = "engine_fields: [chat_template, kv_transfer_params]";
    let shared = SharedRouter::start(&format!(
        "api_keys:\n- {{name: a, key: sk-a, {list}}}\n- {{name: b, key: sk-b, scopes: [chat, overrides]}}\n"
    ));
    let with = |field: &str| {
        let mut body = chat("m");
        body[field] = json!("x");
        body
    };
    for (key, field, may_send) in [
        ("sk-a", "chat_template", true),
        ("sk-b", "chat_template", false),
        ("sk-a", "kv_transfer_params", true),
        ("sk-b", "kv_transfer_params", false),
        ("sk-a", "priority", false),
        ("sk-b", "request_id", true),
        ("sk-a", "mm_processor_kwargs", false),
    ] {
        let reply = shared.post(key, CHAT, &with(field));
        if may_send {
            assert_eq!(reply.status, 200, "{key} {field}: {}", reply.text());
            let sent = shared.engine.next_request();
            let sent = String::from_utf8_lossy(&sent.body).into_owned();
            assert!(sent.contains(field), "{key} {field}: {sent}");
        } else {
            refused(&reply, 403, "field_not_allowed");
            assert_eq!(reply.json()["error"]["param"], field, "{key}");
        }
    }
    // A tenant that is alone may send them, but for those of KV transfer.
    let alone = SharedRouter::start("api_keys: [{name: a, key: sk-a}]\n");
    assert_eq!(alone.post("sk-a", CHAT, &with("chat_template")).status, 200);
    let denied = alone.post("sk-a", CHAT, &with("kv_transfer_params"));
    refused(&denied, 403, "field_not_allowed");
}

#[test]
#[contract("S43")]
fn media_urls_that_are_not_public_reach_no_engine_where_there_are_two_tenants() {
    let two = "api_keys:\n- {name: a, key: sk-a}\n- {name: b, key: sk-b}\n";
    let shared = SharedRouter::start(two);
    let internal = "http://169.254.169.254/latest/meta-data";
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let asking = |part: Value| {
        let message = json!({"role": "user", "content": [part]});
        json!({"model": "m", "max_tokens": 5, "messages": [message]})
    };
    let source = json!({"type": "image", "source": {"type": "url", "url": internal}});
    let input =
        json!({"role": "user", "content": [{"type": "input_image", "image_url": internal}]});
    for (path, body, field) in [
        (CHAT, asking(image(internal)), "image_url"),
        ("/v1/messages", asking(source), "source"),
        (
            "/v1/responses",
            json!({"model": "m", "input": [input]}),
            "image_url",
        ),
        (
            "/generate",
            json!({"model": "m", "text": "hi", "image_data": [internal]}),
            "image_data",
        ),
    ] {
        let denied = shared.post("sk-a", path, &body);
        assert_eq!(denied.status, 403, "{path}: {}", denied.text());
        assert!(denied.text().contains(field), "{path}: {}", denied.text());
    }
    let denied = shared.post("sk-a", CHAT, &asking(image(internal)));
    refused(&denied, 403, "field_not_allowed");
    assert_eq!(shared.engine.requests(), 0, "no engine was asked");
    let status = |url: &str| shared.post("sk-a", CHAT, &asking(image(url))).status;
    let (public, data) = ("https://example.com/a.png", "data:image/png;base64,AA==");
    assert_eq!((status(public), status(data)), (200, 200));

    let reload = |yaml: &str| {
        shared.router.configure(yaml);
        let reload = RawClient::post(&shared.router.admin(), "/admin/reload", b"{}");
        assert_eq!(reload.status, 200, "{}", reload.text());
    };
    let keys = "[{name: a, key: sk-a}, {name: b, key: sk-b}]";
    reload(&format!(
        "tenants: {{media_urls: data, api_keys: {keys}}}\n"
    ));
    assert_eq!((status(public), status(data)), (403, 200));
    reload(&format!("tenants: {{media_urls: any, api_keys: {keys}}}\n"));
    assert_eq!(status(internal), 200);
    reload("api_keys: [{name: a, key: sk-a}]\n");
    assert_eq!(status(internal), 200, "it is the only tenant");
}

#[test]
#[contract("S46")]
fn a_second_tenant_is_refused_while_replies_are_kept_where_others_can_forge_them() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("keys.jsonl");
    let file = path.to_str().expect("its name is text");
    let listed = keys(&["new", "--file", file, "--name", "b"]);
    let one = "{name: a, key: sk-a}";
    // Nothing listens there: the fallback in memory serves.
    let with = |more: &str, tenants: &str| {
        let store = "backend: redis, redis: {url: \"redis://127.0.0.1:1\"}";
        format!("response_cache: {{enabled: true, {store}{more}}}\ntenants: {{{tenants}}}\n")
    };
    let alone = format!("api_keys: [{one}]");
    let shared = SharedRouter::start(&with("", &alone));
    let reload = |yaml: &str| {
        shared.router.configure(yaml);
        RawClient::post(&shared.router.admin(), "/admin/reload", b"{}")
    };
    let two = format!("api_keys: [{one}, {{name: b, key: sk-b}}]");
    let in_file = format!("keys_file: {file}, {alone}");
    for tenants in [&two, &in_file] {
        let denied = reload(&with("", tenants));
        let text = denied.text();
        assert_eq!(denied.status, 400, "{text}");
        assert!(text.contains("response_cache.mac_key"), "{text}");
        assert!(text.contains("openssl rand"), "{text}");
    }
    assert_eq!(shared.post("sk-a", CHAT, &chat("m")).status, 200);
    let unknown = shared.post("sk-b", CHAT, &chat("m"));
    refused(&unknown, 401, "invalid_api_key");
    let accepted = reload(&with(", mac_key: of-these-routers", &in_file));
    assert_eq!(accepted.status, 200, "{}", accepted.text());
    assert_eq!(shared.post(&listed, CHAT, &chat("m")).status, 200);
    let accepted = reload(&with(", insecure: true", &two));
    assert_eq!(accepted.status, 200, "{}", accepted.text());
    assert_eq!(shared.post("sk-b", CHAT, &chat("m")).status, 200);
}

#[test]
#[contract("V31", "V32", "S6")]
fn keys_of_a_file_are_accepted_and_a_changed_file_is_read_again() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("keys.jsonl");
    let file = path.to_str().expect("its name is text");
    let rules = ["--model", "m", "--engine-field", "priority"];
    let first = keys(&[&["new", "--file", file, "--name", "a"], &rules[..]].concat());
    let shared = SharedRouter::start(&format!(
        "tenants:\n  keys_file: {file}\n  api_keys: [{{name: b, key: sk-b}}]\n"
    ));
    assert_eq!(shared.post(&first, CHAT, &chat("m")).status, 200);
    assert_eq!(shared.post("sk-b", CHAT, &chat("m")).status, 200);
    refused(
        &shared.post(&first, CHAT, &chat("x")),
        403,
        "model_not_allowed",
    );
    let mut urgent = chat("m");
    urgent["priority"] = json!(1);
    assert_eq!(shared.post(&first, CHAT, &urgent).status, 200);
    let denied = shared.post("sk-b", CHAT, &urgent);
    refused(&denied, 403, "field_not_allowed");

    // A second key of the tenant has the rules of the first, and takes effect without a call.
    let second = keys(&["new", "--file", file, "--name", "a"]);
    eventually("the new key is accepted", || {
        (shared.post(&second, CHAT, &chat("m")).status == 200).then_some(())
    });
    refused(
        &shared.post(&second, CHAT, &chat("x")),
        403,
        "model_not_allowed",
    );
    let text = std::fs::read_to_string(&path).expect("it is there");
    assert!(
        !text.contains(&first) && !text.contains(&second),
        "only digests are stored"
    );

    let listed = keys(&["list", "--file", file]);
    let id = listed.lines().next().and_then(|row| row.split(' ').next());
    keys(&["revoke", "--file", file, "--id", id.expect("an id")]);
    // The new key was wrong until the file was read, so wrong keys of this address are throttled.
    eventually("the revoked key is refused", || {
        let status = shared.post(&first, CHAT, &chat("m")).status;
        matches!(status, 401 | 429).then_some(())
    });
    assert_eq!(shared.post(&second, CHAT, &chat("m")).status, 200);

    // A wrong line, or no file, changes nothing.
    std::fs::write(&path, format!("{text}sk-plain\n")).expect("it can be written");
    let reload = RawClient::post(&shared.router.admin(), "/admin/reload", b"{}");
    assert_eq!(reload.status, 400, "{}", reload.text());
    assert!(!reload.text().contains("sk-plain"), "{}", reload.text());
    assert_eq!(shared.post(&second, CHAT, &chat("m")).status, 200);

    // An empty file lists no key: nobody is let in by it.
    std::fs::write(&path, "").expect("it can be written");
    let reload = RawClient::post(&shared.router.admin(), "/admin/reload", b"{}");
    assert_eq!(reload.status, 200, "{}", reload.text());
    let status = shared.post(&second, CHAT, &chat("m")).status;
    assert!(matches!(status, 401 | 429), "{status}");
    assert_eq!(shared.post("sk-b", CHAT, &chat("m")).status, 200);
    let unknown = Program::finish(&["keys", "revoke", "--file", file, "--name", "a"]);
    assert_eq!(unknown.code, Some(1), "{}", unknown.stderr);
}
