//! Blocks, prefix caching, salts and adapters.

use contract_id::contract;
use serde_json::{Value, json};

use super::{
    front::{EngineFront, FrontBehavior, FrontRequest},
    look::{engine, look_at, look_at_url, look_with},
};
use crate::harness::json_reply;

#[test]
#[contract("G28", "V18")]
fn wrong_block_size() {
    let engine = engine(&["--block-size", "32"]);
    let seen = look_at(&engine, &["--block-size", "16"]);
    let fix = "start the engine with --block-size {here}, or set workers[0].block_size: {there}";
    let check = seen.fails(
        &["w1"],
        "block_size",
        fix,
        &[("here", "16"), ("there", "32")],
    );
    assert_eq!(
        (&check["found"], &check["expected"]),
        (&json!("32"), &json!("16"))
    );
    look_with(&engine, "block_size: 32", "").green();
}

#[test]
#[contract("G28")]
fn prefix_caching_off() {
    let fix = "start the engine with --enable-prefix-caching (without --no-enable-prefix-caching)";
    look_at(&engine(&["--no-prefix-caching"]), &[]).fails(&["w1"], "prefix_caching", fix, &[]);
}

#[test]
#[contract("G28")]
fn usage_details_off() {
    let fix = "start the engine with --enable-prompt-tokens-details";
    look_at(&engine(&["--no-usage-details"]), &[]).fails(&["w1"], "usage_details", fix, &[]);
}

/// A gateway that drops unknown fields.
struct SaltDroppingFront;

impl FrontBehavior for SaltDroppingFront {
    fn on_request(&self, request: &mut FrontRequest) -> Option<Vec<u8>> {
        if let Some(body) = request.body.as_object_mut() {
            body.remove("cache_salt");
        }
        None
    }
}

#[test]
#[contract("G28")]
fn salts_are_ignored() {
    let engine = engine(&[]);
    let front = EngineFront::of(&engine, SaltDroppingFront);
    let fix = "use an engine that honours cache_salt (vLLM 0.9 or later), or do not share it between tenants";
    look_at_url(&front.url(), &[]).warns("w1", "salt_honoured", fix, &[]);
}

/// How a request for the adapter goes wrong.
enum Adapter {
    /// The adapter was unloaded, and the model list is stale.
    Gone,
    /// The base model serves it.
    Ignored,
}

impl FrontBehavior for Adapter {
    fn on_request(&self, request: &mut FrontRequest) -> Option<Vec<u8>> {
        if request.body["model"] != "ad1" {
            return None;
        }
        match self {
            Self::Gone => {
                let body =
                    json!({"error": {"message": "The model `ad1` does not exist."}}).to_string();
                Some(json_reply("404 Not Found", "connection: close\r\n", &body))
            }
            Self::Ignored => {
                request.body["model"] = "sim".into();
                None
            }
        }
    }
}

#[test]
#[contract("G28")]
fn a_listed_adapter_is_not_loaded() {
    let engine = engine(&["--loras", "ad1"]);
    look_at(&engine, &[]).green();
    let fix =
        "start the engine with --enable-lora --lora-modules {name}=DIR, or take it off the engine";
    let front = EngineFront::of(&engine, Adapter::Gone);
    look_at_url(&front.url(), &[]).fails(&["w1"], "lora", fix, &[("name", "ad1")]);
}

#[test]
#[contract("G28")]
fn adapters_share_the_base_models_cache() {
    let engine = engine(&["--loras", "ad1"]);
    let front = EngineFront::of(&engine, Adapter::Ignored);
    let fix = "update the engine: it mixes the caches of adapters";
    look_at_url(&front.url(), &[]).fails(&["w1"], "lora", fix, &[]);
}

/// An engine that reports its cache only in usage, and always reports no hit.
struct SilentEngine;

impl FrontBehavior for SilentEngine {
    fn reply(&self, _: &str, body: &mut Value) {
        if let Some(usage) = body.get_mut("usage") {
            usage["prompt_tokens_details"] = Value::Null;
        }
    }
}

#[test]
#[contract("G28")]
fn a_gateway_drops_usage_details() {
    let engine = engine(&[]);
    let front = EngineFront::of(&engine, SilentEngine);
    let fix = "start the engine with --enable-prompt-tokens-details";
    look_at_url(&front.url(), &[]).fails(&["w1"], "usage_details", fix, &[]);
}
