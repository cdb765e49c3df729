//! Sources of a model's tokenizer.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use config::TokenizerSetting;
use contract_id::contract;
use fleet::{HubCache, TokenizerSource, artefacts::check_dir};

use crate::{
    fake_engine::FakeEngine,
    setup::{models, parts, start, worker},
};

fn fixture() -> PathBuf {
    fs::canonicalize(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vllm-real/tiny-qwen"),
    )
    .unwrap()
}

fn copy_to(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(fixture().join(name), dir.join(name)).unwrap();
    }
}

async fn engine_with_root(root: &str) -> FakeEngine {
    let engine = FakeEngine::serving("m").await;
    let body = serde_json::json!({"data": [{"id": "m", "root": root}]});
    engine.answer("/v1/models", 200, body.to_string());
    engine
}

/// Serves the fixture like the simulated engine serves its files.
fn serve_files(engine: &FakeEngine) {
    engine.answer(
        "/sim/tokenizer.json",
        200,
        fs::read(fixture().join("tokenizer.json")).unwrap(),
    );
    engine.answer(
        "/sim/tokenizer_config.json",
        200,
        fs::read(fixture().join("tokenizer_config.json")).unwrap(),
    );
}

#[tokio::test]
async fn a_configured_directory_is_loaded_once_for_all_workers_of_its_model() {
    let engines = [
        FakeEngine::serving("m").await,
        FakeEngine::serving("m").await,
    ];
    let mut parts = parts(vec![
        worker("w1", &engines[0].url()),
        worker("w2", &engines[1].url()),
    ]);
    parts.models = models(TokenizerSetting::Directory(fixture()));
    let running = start(parts);
    running.verdict("w1 ").await;
    let line = running.verdict("w2 ").await;
    assert!(line.ends_with("tokenizer=exact"), "{line}");
    let snapshot = running.fleet.snapshot();
    let found = &snapshot.model("m").unwrap().artefacts;
    assert_eq!(found.source, TokenizerSource::Dir(fixture()));
    let prompt = found.prompt.as_ref().unwrap();
    assert!(!prompt.text_tokens("hello", false).unwrap().is_empty());
    // The snapshot and each worker's record share one object; a second load would create another.
    assert_eq!(Arc::strong_count(prompt), 2);
    let report = &snapshot.model_reports()[0];
    assert_eq!(
        (&*report.tokenizer.source, &*report.tokenizer.engine),
        ("dir", "fastokens")
    );
    assert_eq!(report.tokenizer.self_test, "ok");
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("S64")]
async fn a_directory_named_only_by_an_engine_is_not_read() {
    let engine = engine_with_root(&fixture().display().to_string()).await;
    let running = start(parts(vec![worker("w1", &engine.url())]));
    let line = running.verdict("w1 ").await;
    assert!(line.ends_with("tokenizer=none"), "{line}");
    assert_eq!(
        running
            .fleet
            .snapshot()
            .model("m")
            .unwrap()
            .artefacts
            .source,
        TokenizerSource::None
    );
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("S64", "F81")]
async fn different_tokenizers_of_workers_leave_the_model_without_one() {
    let engines = [
        FakeEngine::serving("m").await,
        FakeEngine::serving("m").await,
    ];
    serve_files(&engines[0]);
    serve_files(&engines[1]);
    engines[1].answer(
        "/sim/tokenizer_config.json",
        200,
        r#"{"chat_template": "{{ messages }}"}"#,
    );
    let running = start(parts(vec![
        worker("w1", &engines[0].url()),
        worker("w2", &engines[1].url()),
    ]));
    running.ready("w1").await;
    running.ready("w2").await;
    let snapshot = running.fleet.snapshot();
    let found = &snapshot.model("m").unwrap().artefacts;
    assert!(
        found.prompt.is_none() && found.source == TokenizerSource::None,
        "{found:?}"
    );
    assert!(
        found
            .problem
            .as_ref()
            .is_some_and(|problem| problem.contains("different tokenizers")),
        "{found:?}"
    );
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("S64")]
async fn a_hostile_tokenizer_is_refused_and_another_model_s_loads() {
    let (hostile, honest) = (
        FakeEngine::serving("bad").await,
        FakeEngine::serving("good").await,
    );
    serve_files(&honest);
    let json = fs::read_to_string(fixture().join("tokenizer.json")).unwrap();
    let mut file: serde_json::Value = serde_json::from_str(&json).unwrap();
    file["added_tokens"][0]["id"] = serde_json::json!(4_294_967_294_u32);
    hostile.answer("/sim/tokenizer.json", 200, file.to_string());
    let running = start(parts(vec![
        worker("w1", &hostile.url()),
        worker("w2", &honest.url()),
    ]));
    running.ready("w1").await;
    running.ready("w2").await;
    let snapshot = running.fleet.snapshot();
    let bad = &snapshot.model("bad").unwrap().artefacts;
    assert!(
        bad.problem
            .as_ref()
            .is_some_and(|problem| problem.contains("expected ids below")),
        "{bad:?}"
    );
    assert!(snapshot.model("good").unwrap().artefacts.prompt.is_some());
    running.fleet.stop().await;
}

#[tokio::test]
async fn the_hub_cache_is_searched_for_the_root_and_nothing_is_downloaded() {
    let hub = tempfile::tempdir().unwrap();
    let dir = hub.path().join("models--org--tiny/snapshots/abc");
    copy_to(&dir);
    let engine = engine_with_root("org/tiny").await;
    let mut parts = parts(vec![worker("w1", &engine.url())]);
    parts.hub_cache = HubCache(Some(hub.path().to_owned()));
    let running = start(parts);
    running.ready("w1").await;
    let snapshot = running.fleet.snapshot();
    assert_eq!(
        snapshot.model("m").unwrap().artefacts.source,
        TokenizerSource::Dir(dir)
    );
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("V2")]
async fn a_configured_id_of_the_hub_overrides_the_root_and_is_no_error_if_it_is_missing() {
    let hub = tempfile::tempdir().unwrap();
    let dir = |name: &str| {
        hub.path()
            .join(format!("models--org--{name}/snapshots/abc"))
    };
    copy_to(&dir("tiny"));
    copy_to(&dir("other"));
    let engine = engine_with_root("org/other").await;
    for (id, found) in [("org/tiny", "tiny"), ("org/missing", "other")] {
        let mut parts = parts(vec![worker("w1", &engine.url())]);
        parts.models = models(TokenizerSetting::Hub(id.to_owned()));
        parts.hub_cache = HubCache(Some(hub.path().to_owned()));
        let running = start(parts);
        running.ready("w1").await;
        let snapshot = running.fleet.snapshot();
        assert_eq!(
            snapshot.model("m").unwrap().artefacts.source,
            TokenizerSource::Dir(dir(found)),
            "{id}"
        );
        running.fleet.stop().await;
    }
}

#[tokio::test]
async fn the_simulated_engine_serves_its_tokenizer_as_files() {
    let engine = FakeEngine::serving("m").await;
    serve_files(&engine);
    let running = start(parts(vec![worker("w1", &engine.url())]));
    let line = running.verdict("w1 ").await;
    assert!(line.ends_with("tokenizer=exact"), "{line}");
    assert_eq!(
        running
            .fleet
            .snapshot()
            .model("m")
            .unwrap()
            .artefacts
            .source,
        TokenizerSource::Engine
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_configured_directory_overrides_discovery_and_none_disables_it() {
    let own = tempfile::tempdir().unwrap();
    copy_to(own.path());
    let engine = engine_with_root(&fixture().display().to_string()).await;
    for (tokenizer, source) in [
        (
            TokenizerSetting::Directory(own.path().to_owned()),
            TokenizerSource::Dir(own.path().to_owned()),
        ),
        (TokenizerSetting::None, TokenizerSource::None),
    ] {
        let mut parts = parts(vec![worker("w1", &engine.url())]);
        parts.models = models(tokenizer);
        let running = start(parts);
        running.ready("w1").await;
        assert_eq!(
            running
                .fleet
                .snapshot()
                .model("m")
                .unwrap()
                .artefacts
                .source,
            source
        );
        running.fleet.stop().await;
    }
}

#[tokio::test]
#[contract("F81")]
async fn a_broken_tokenizer_costs_exactness_and_the_worker_stays_ready() {
    let engine = FakeEngine::serving("m").await;
    engine.answer("/sim/tokenizer.json", 200, "{\"broken\":");
    let running = start(parts(vec![worker("w1", &engine.url())]));
    let line = running.verdict(" ready ").await;
    assert!(line.ends_with("tokenizer=none"), "{line}");
    let snapshot = running.fleet.snapshot();
    assert!(
        snapshot
            .model("m")
            .unwrap()
            .artefacts
            .problem
            .as_ref()
            .unwrap()
            .contains("cannot be loaded")
    );
    running.fleet.stop().await;
}

#[test]
fn an_invalid_configured_directory_is_reported_with_the_fix() {
    let dir = tempfile::tempdir().unwrap();
    let error_text = |path: &Path| check_dir(path).unwrap_err().to_string();
    assert!(error_text(&dir.path().join("gone")).contains("does not exist"));
    assert!(error_text(dir.path()).contains("has no tokenizer.json"));
    fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
    assert!(error_text(dir.path()).contains("cannot be loaded"));
    assert!(error_text(&dir.path().join("tokenizer.json")).contains("is not a directory"));
    check_dir(&fixture()).unwrap();
}

#[tokio::test]
async fn without_tokenizer_files_the_engines_tokenize_is_used() {
    let engine = FakeEngine::serving("m").await;
    engine.answer(
        "/tokenize",
        200,
        r#"{"count": 1, "max_model_len": 64, "tokens": [7]}"#,
    );
    let running = start(parts(vec![worker("w1", &engine.url())]));
    let line = running.verdict("w1 ").await;
    assert!(line.ends_with("tokenizer=engine"), "{line}");
    let snapshot = running.fleet.snapshot();
    assert_eq!(
        snapshot.model("m").unwrap().artefacts.source,
        TokenizerSource::Remote
    );
    let report = &snapshot.model_reports()[0].tokenizer;
    assert_eq!(
        (&*report.source, &*report.engine, &*report.self_test),
        ("engine", "remote", "skipped")
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_foreign_route_named_tokenize_is_not_used() {
    for (status, body) in [
        (200, r#"{"tokens": []}"#),
        (200, "{}"),
        (405, ""),
        (404, ""),
    ] {
        let engine = FakeEngine::serving("m").await;
        engine.answer("/tokenize", status, body);
        let running = start(parts(vec![worker("w1", &engine.url())]));
        let line = running.verdict("w1 ").await;
        assert!(line.ends_with("tokenizer=none"), "{status} {body}: {line}");
        running.fleet.stop().await;
    }
}

#[tokio::test]
async fn a_configured_engine_is_used_although_files_are_available() {
    let engine = engine_with_root(&fixture().display().to_string()).await;
    let mut parts = parts(vec![worker("w1", &engine.url())]);
    parts.models = models(TokenizerSetting::Engine);
    let running = start(parts);
    running.ready("w1").await;
    assert_eq!(
        running
            .fleet
            .snapshot()
            .model("m")
            .unwrap()
            .artefacts
            .source,
        TokenizerSource::Remote
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_configured_directory_is_loaded_before_any_worker_answers() {
    let engine = FakeEngine::bound().await;
    let mut parts = parts(vec![worker("w1", &engine.url())]);
    parts.models = models(TokenizerSetting::None);
    let own = parts.models.defaults.clone();
    parts.models.entries.insert(
        "tiny".into(),
        config::ModelEntry {
            tokenizer: TokenizerSetting::Directory(fixture()),
            ..own
        },
    );
    let running = start(parts);
    assert_eq!(running.fleet.only_model().as_deref(), Some("tiny"));
    let found = running
        .fleet
        .configured_artefacts("tiny")
        .await
        .expect("the directory is there");
    assert!(found.prompt.is_some());
    let again = running
        .fleet
        .configured_artefacts("tiny")
        .await
        .expect("it still is");
    assert!(Arc::ptr_eq(&found, &again), "loaded once");
    assert!(running.fleet.configured_artefacts("m").await.is_none());
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("F75")]
async fn a_tokenizer_stays_known_while_it_is_loaded_whichever_worker_lists_its_model() {
    let hub = tempfile::tempdir().unwrap();
    copy_to(&hub.path().join("models--org--tiny/snapshots/abc"));
    let engine = engine_with_root("org/tiny").await;
    let mut parts = parts(vec![worker("w1", &engine.url())]);
    parts.hub_cache = HubCache(Some(hub.path().to_owned()));
    let other = tempfile::tempdir().unwrap();
    copy_to(other.path());
    // Other files make another tokenizer of it.
    fs::write(other.path().join("tokenizer_config.json"), "{}").unwrap();
    let own = parts.models.defaults.clone();
    let configured = config::ModelEntry {
        tokenizer: TokenizerSetting::Directory(other.path().to_owned()),
        ..own
    };
    parts.models.entries.insert("tiny".into(), configured);
    let running = start(parts);
    let line = running.verdict("w1 ").await;
    assert!(line.ends_with("tokenizer=exact"), "{line}");
    let knows = |one: &Arc<_>| {
        running
            .fleet
            .tokenizers()
            .iter()
            .any(|known| Arc::ptr_eq(known, one))
    };
    let tiny = running
        .fleet
        .configured_artefacts("tiny")
        .await
        .and_then(|found| found.prompt.clone())
        .unwrap();
    assert!(knows(&tiny), "no worker lists it");
    let m = running
        .fleet
        .snapshot()
        .model("m")
        .and_then(|model| model.artefacts.prompt.clone())
        .unwrap();
    assert!(knows(&m));
    engine.models(&["n"]);
    running.fleet.request_recheck(running.ready("w1").await.id);
    drop(
        running
            .until("the model gone", |snapshot| snapshot.model("m").is_none())
            .await,
    );
    assert!(knows(&m), "the model may return with its tokenizer");
    drop(m);
    assert_eq!(
        running.fleet.tokenizers().len(),
        1,
        "an unused tokenizer is gone"
    );
    running.fleet.stop().await;
}
