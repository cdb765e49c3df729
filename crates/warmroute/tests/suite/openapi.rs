//! `/openapi.json` describes what the running router answers: every reply has exactly the
//! described fields, with the described values.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{RawClient, RawReply, RoutedFleet, chat_message, words};

/// The router's document, with objects closed: a field that is not described is an error.
struct Document(Value);

impl Document {
    fn of(routed: &RoutedFleet) -> Self {
        let mut document = RawClient::get(&routed.router.admin(), "/openapi.json").json();
        close_objects(&mut document["components"]["schemas"]);
        Self(document)
    }

    /// Asserts that the reply is one of those that are described for this call.
    fn describes(&self, call: (&str, &str), reply: &RawReply) {
        let (method, path) = call;
        let status = reply.status.to_string();
        let described = &self.0["paths"][path][method]["responses"][&status];
        assert!(
            described.is_object(),
            "{method} {path} answers an undescribed {status}: {}",
            reply.text()
        );
        let media_type = reply.header("content-type").expect("a content type");
        let content = &described["content"][media_type];
        assert!(
            content.is_object(),
            "{method} {path} answers with an undescribed {media_type}"
        );
        let Some(schema) = content.get("schema") else {
            return;
        };
        let values = match media_type {
            "application/x-ndjson" => reply.text().lines().map(parsed).collect(),
            _ => vec![reply.json()],
        };
        for value in values {
            self.check(call, schema, &value);
        }
    }

    fn check(&self, call: (&str, &str), schema: &Value, value: &Value) {
        let whole = json!({"allOf": [schema], "components": self.0["components"]});
        let validator = jsonschema::draft202012::new(&whole).expect("a JSON schema");
        let faults: Vec<String> = validator
            .iter_errors(value)
            .map(|fault| format!("{fault} at {}", fault.instance_path()))
            .collect();
        assert!(faults.is_empty(), "{call:?}: {faults:#?}\n{value:#}");
    }
}

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).expect("a line of JSON")
}

fn close_objects(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(close_objects);
            if fields.get("properties").is_some_and(Value::is_object) {
                fields.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close_objects),
        _ => {}
    }
}

/// Two engines, some requests, and a stored reply.
fn fleet() -> RoutedFleet {
    let routed = RoutedFleet::with(
        &[&["--loras", "red"], &["--dp-size", "2"]],
        "response_cache: {enabled: true}\n",
        &[],
    );
    for (worker, salt) in [("a", "one"), ("b", "two"), ("a", "three")] {
        let messages = [chat_message("user", &words(salt, 60))];
        routed.chat(&messages, &[("x-warmroute-worker", worker)]);
    }
    let again =
        json!({"model": "sim", "prompt": "twice", "max_tokens": 4, "temperature": 0}).to_string();
    for _ in 0..2 {
        RawClient::post(&routed.router.data(), "/v1/completions", again.as_bytes());
    }
    routed
}

fn delete(address: &str, path: &str) -> RawReply {
    let mut client = RawClient::connect(address);
    client.send("DELETE", path, &[], b"");
    client.reply()
}

#[test]
#[contract("V43")]
fn the_document_is_the_stored_one_and_a_valid_openapi_3_1_description() {
    let routed = RoutedFleet::start(&[&[]]);
    let served = RawClient::get(&routed.router.admin(), "/openapi.json").json();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let stored = std::fs::read_to_string(path).expect("docs/openapi.json");
    assert_eq!(served, parsed(&stored));
    assert_eq!(served["openapi"], "3.1.0");
    for schema in served["components"]["schemas"]
        .as_object()
        .expect("schemas")
        .values()
    {
        assert!(jsonschema::meta::is_valid(schema), "{schema}");
    }
}

#[test]
#[contract("V43")]
fn every_documented_read_answers_as_described() {
    let routed = fleet();
    let document = Document::of(&routed);
    let id = routed
        .chat(&[chat_message("user", "one more")], &[])
        .decision;
    let paths = document.0["paths"].as_object().expect("paths").clone();
    let mut requested = 0;
    for (path, item) in &paths {
        // A stream has no end, and a router alone has nothing for peers.
        let special = path == "/v1/kv_events" || path.starts_with("/admin/replicas/");
        if item.get("get").is_none() || special {
            continue;
        }
        let address = match item["servers"][0]["description"].as_str() {
            Some("The data listener") => routed.router.data(),
            _ => routed.router.admin(),
        };
        let called = path.replace("{name}", "b").replace("{id}", &id);
        let reply = RawClient::get(&address, &called);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        document.describes(("get", path), &reply);
        requested += 1;
    }
    assert!(requested >= 20, "{requested}");
    for (path, called) in [
        ("/admin/workers/{name}", "/admin/workers/nobody"),
        ("/admin/decisions/{id}", "/admin/decisions/none"),
        ("/admin/decisions", "/admin/decisions?limit=x"),
        ("/admin/doctor", "/admin/doctor?probe=x"),
        ("/admin/config", "/admin/config?format=x"),
        ("/admin/config", "/admin/config?format=yaml"),
    ] {
        document.describes(
            ("get", path),
            &RawClient::get(&routed.router.admin(), called),
        );
    }
}

#[test]
#[contract("V43")]
fn every_documented_change_answers_as_described() {
    let routed = fleet();
    let document = Document::of(&routed);
    let (admin, data) = (routed.router.admin(), routed.router.data());
    let route = r#"{"model": "sim", "prompt": "a prompt", "request_id": "r1"}"#;
    let dry_run = r#"{"model": "sim", "prompt": "a prompt"}"#;
    let worker = format!(r#"{{"name": "c", "url": "{}"}}"#, routed.engines[0].url());
    let publisher = r#"{"endpoint": "tcp://127.0.0.1:1", "type": "vLLM", "modelname": "m", "instance_id": "i", "block_size": 16, "dp_rank": 0}"#;
    let tokens = r#"{"model": "m", "token_ids": [1, 2], "block_size": 16}"#;
    let hashes = r#"{"model": "m", "seq_hashes": [1, "2"], "block_size": 16}"#;
    let calls = [
        (&admin, "/admin/workers", "/admin/workers", &*worker),
        (&admin, "/admin/workers", "/admin/workers", &*worker),
        (&admin, "/admin/workers", "/admin/workers", "no json"),
        (
            &admin,
            "/admin/workers/{name}/drain",
            "/admin/workers/b/drain",
            "",
        ),
        (
            &admin,
            "/admin/workers/{name}/drain",
            "/admin/workers/nobody/drain",
            "",
        ),
        (
            &admin,
            "/admin/workers/{name}/resume",
            "/admin/workers/b/resume",
            "",
        ),
        (
            &admin,
            "/admin/reload",
            "/admin/reload",
            r#"{"dry_run": true}"#,
        ),
        (
            &admin,
            "/admin/config/rollback",
            "/admin/config/rollback",
            r#"{"id": 1}"#,
        ),
        (
            &admin,
            "/admin/config/rollback",
            "/admin/config/rollback",
            "{}",
        ),
        (&admin, "/admin/takeover", "/admin/takeover", "{}"),
        (&admin, "/admin/kv-index/clear", "/admin/kv-index/clear", ""),
        (
            &admin,
            "/admin/response-cache/invalidate",
            "/admin/response-cache/invalidate",
            r#"{"clear_all": true}"#,
        ),
        (
            &admin,
            "/admin/response-cache/invalidate",
            "/admin/response-cache/invalidate",
            "{}",
        ),
        (&admin, "/v1/route", "/v1/route", dry_run),
        (&admin, "/v1/route", "/v1/route", route),
        (&data, "/v1/route", "/v1/route", route),
        (&data, "/v1/route", "/v1/route", route),
        (
            &data,
            "/v1/route/potential_loads",
            "/v1/route/potential_loads",
            dry_run,
        ),
        (
            &data,
            "/v1/route/{request_id}/prefill_complete",
            "/v1/route/r1/prefill_complete",
            "",
        ),
        (
            &data,
            "/v1/route/{request_id}/prefill_complete",
            "/v1/route/r2/prefill_complete",
            "",
        ),
        (&admin, "/query", "/query", "{}"),
        (&admin, "/register", "/register", publisher),
        (&admin, "/query", "/query", tokens),
        (&admin, "/query_by_hash", "/query_by_hash", hashes),
        (
            &admin,
            "/admin/drain",
            "/admin/drain",
            r#"{"timeout": "soon"}"#,
        ),
        (
            &admin,
            "/admin/drain",
            "/admin/drain",
            r#"{"timeout": "1s"}"#,
        ),
    ];
    for (address, path, called, body) in calls {
        let reply = RawClient::post(address, called, body.as_bytes());
        document.describes(("post", path), &reply);
        if reply.status < 300 && !body.is_empty() {
            let described = &document.0["paths"][path]["post"]["requestBody"]["content"];
            let schema = &described["application/json"]["schema"];
            document.check(("post", path), schema, &parsed(body));
        }
    }
    for path in ["/services", "/global_view"] {
        document.describes(("get", path), &RawClient::get(&admin, path));
    }
    for _ in 0..2 {
        let reply = RawClient::post(&admin, "/unregister", publisher.as_bytes());
        document.describes(("post", "/unregister"), &reply);
    }
    for (path, called) in [
        ("/v1/route/{request_id}", "/v1/route/r1"),
        ("/v1/route/{request_id}", "/v1/route/r1"),
    ] {
        let reply = delete(&data, called);
        document.describes(("delete", path), &reply);
    }
    for called in ["/admin/workers/c", "/admin/workers/nobody"] {
        let reply = delete(&admin, called);
        document.describes(("delete", "/admin/workers/{name}"), &reply);
    }
}
