//! Engines have control routes beside their API; no request reaches them through the router.

use contract_id::contract;

use super::RoutedEngine;
use crate::harness::{RawClient, ScriptedEngine, ScriptedReply, json_reply};

/// Control routes of vLLM and SGLang, and routes of both that run code, load files or show
/// settings.
const CONTROL_ROUTES: [&str; 60] = [
    "/abort_request",
    "/abort_requests",
    "/add_external_corpus",
    "/begin_weight_update",
    "/clear_hicache_storage_backend",
    "/close_session",
    "/collective_rpc",
    "/configure_logging",
    "/continue_generation",
    "/destroy_weights_update_group",
    "/dump_loads",
    "/encode",
    "/flush_cache",
    "/freeze_gc",
    "/get_internal_state",
    "/get_load",
    "/get_loads",
    "/get_model_info",
    "/get_server_info",
    "/get_weights_by_name",
    "/health_generate",
    "/hicache/storage-backend",
    "/init_weight_transfer_engine",
    "/init_weights_send_group_for_remote_instance",
    "/init_weights_update_group",
    "/invocations",
    "/is_paused",
    "/is_scaling_elastic_ep",
    "/is_sleeping",
    "/load",
    "/load_lora_adapter",
    "/load_lora_adapter_from_tensors",
    "/metrics",
    "/model_info",
    "/open_session",
    "/parse_function_call",
    "/pause",
    "/pause_generation",
    "/release_memory_occupation",
    "/reset_encoder_cache",
    "/reset_mm_cache",
    "/reset_prefix_cache",
    "/resume",
    "/resume_memory_occupation",
    "/scale_elastic_ep",
    "/separate_reasoning",
    "/server_info",
    "/set_internal_state",
    "/shutdown",
    "/sleep",
    "/slow_down",
    "/start_profile",
    "/stop_profile",
    "/unload_lora_adapter",
    "/update_weights",
    "/update_weights_from_disk",
    "/v1/load_lora_adapter",
    "/v1/loads",
    "/v1/unload_lora_adapter",
    "/wake_up",
];

#[test]
#[contract("V45", "S43")]
fn no_control_route_of_an_engine_is_reachable_through_the_router() {
    let pair = RoutedEngine::start();
    // Every other route that a worker has was asked for before it became ready.
    pair.engine.forget();
    for path in CONTROL_ROUTES {
        // The router itself polls the metrics.
        if path != "/metrics" {
            pair.engine.answer(path, "200 OK", "{}");
        }
        for method in ["GET", "POST", "PUT", "DELETE"] {
            let mut client = RawClient::connect(&pair.router.data());
            client.send(method, path, &[], br#"{"model":"m"}"#);
            let reply = client.reply();
            assert_eq!(
                (reply.status, reply.error_code().as_str()),
                (404, "unknown_route"),
                "{method} {path}"
            );
        }
        // Nor below a route that has paths below it, in any spelling.
        for root in ["/v1/responses/", "/v1/models/", "/v1/route/"] {
            let escaped = path.replace('/', "%2F");
            for target in [
                format!("{root}..{escaped}"),
                format!("{root}../..{path}"),
                format!("{root}%2E%2E/%2e%2e{path}"),
            ] {
                let reply = RawClient::post(&pair.router.data(), &target, b"{}");
                assert!(
                    (400..500).contains(&reply.status),
                    "{target}: {}",
                    reply.status
                );
            }
        }
    }
    assert_eq!(pair.engine.seen_lines(), [""; 0]);
    assert_eq!(pair.engine.requests(), 0);
}

#[test]
#[contract("V45")]
fn the_router_itself_calls_no_control_route_of_an_engine() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    for path in CONTROL_ROUTES {
        // Read for the load of the engine.
        if path != "/metrics" {
            engine.answer(path, "200 OK", "{}");
        }
    }
    let pair = RoutedEngine::with(engine, "health_checks: {interval: 1s}\n");
    for _ in 0..4 {
        let reply = pair.post("/v1/completions", r#"{"model":"m","prompt":"a"}"#);
        assert_eq!(reply.status, 200, "{}", reply.text());
        std::thread::sleep(std::time::Duration::from_millis(600));
    }
    let called = pair.engine.seen_lines();
    let mut control = called
        .iter()
        .filter(|line| !line.starts_with("POST /v1/completions "));
    assert_eq!(control.next(), None);
    assert_eq!(called.len(), 4);
}
