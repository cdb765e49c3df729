//! Configurations that the router refuses, found before any worker is contacted.

use contract_id::contract;

use super::look::{DoctorRun, doctor, look_with_file, write};
use crate::harness::Program;

/// Runs the doctor with these sections and one worker that is never contacted.
fn look(sections: &str) -> DoctorRun {
    look_with_file(&format!("{sections}\nworkers: [\"http://127.0.0.1:1\"]\n"))
}

#[test]
#[contract("G28")]
fn the_admin_listener_is_exposed_without_a_token() {
    let seen = look("admin: {listen: \"0.0.0.0:8081\"}");
    let fix = "set admin.listen to a loopback address, or `admin.token_file` (--admin-token-file)";
    let check = seen.refuses(fix, &[]);
    assert!(
        check["message"]
            .as_str()
            .is_some_and(|text| text.contains("no token protects it")),
        "{check}"
    );
}

#[test]
#[contract("G28")]
fn the_data_listener_is_exposed_without_a_key() {
    let fix = "set server.listen to a loopback address, keys in `tenants.api_keys` or `tenants.keys_file`, or \
               `server.insecure_open: true` (--insecure-open) to serve everyone";
    look("server: {listen: \"0.0.0.0:8080\"}").refuses(fix, &[]);
}

#[test]
#[contract("G28", "S46")]
fn replies_to_several_tenants_are_in_a_store_where_others_can_forge_them() {
    let fix = "set response_cache.mac_key to one long random text, the same on all routers (`openssl rand -base64 32` prints \
               one), or `response_cache.insecure: true`";
    let seen = look(
        "api_keys: [{name: a, key: k1}, {name: b, key: k2}]\n\
         response_cache: {enabled: true, backend: redis, redis: {url: \"redis://127.0.0.1:1\"}}",
    );
    seen.refuses(fix, &[]);
}

#[test]
#[contract("G28")]
fn a_misspelt_configuration_key() {
    let fix = "at {key} write {right}";
    look("routing: {overlap_wieght: 2}").refuses(
        fix,
        &[
            ("key", "routing.overlap_wieght"),
            ("right", "overlap_weight"),
        ],
    );
}

#[test]
#[contract("G28")]
fn a_missing_tokenizer_directory() {
    let seen = doctor(&[
        "-w",
        "http://127.0.0.1:1",
        "--tokenizer",
        "sim=/nowhere/tokenizer",
    ]);
    let check = seen.refuses(
        "correct {key}",
        &[("key", "models.entries[\"sim\"].tokenizer")],
    );
    assert!(
        check["message"]
            .as_str()
            .is_some_and(|text| text.contains("/nowhere/tokenizer")),
        "{check}"
    );
}

#[test]
fn an_invalid_configuration_ends_with_78_and_still_prints_one_object() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = write(
        dir.path(),
        "bad.yaml",
        "workers: [{url: \"http://127.0.0.1:1\", block_size: none}]\n",
    );
    let seen = doctor(&["-c", &file]);
    assert_eq!(seen.code, Some(78));
    assert_eq!(seen.with("fail"), ["router config"]);
    assert!(
        seen.check("router", "config")["message"]
            .as_str()
            .is_some_and(|text| text.contains("line 1"))
    );
    assert_eq!(Program::finish(&["doctor", "-c", &file]).code, Some(78));
    assert_eq!(Program::finish(&["doctor", "--timeout", "0"]).code, Some(2));
    assert_eq!(
        Program::finish(&["doctor"]).code,
        Some(78),
        "there is nothing to check"
    );
}
