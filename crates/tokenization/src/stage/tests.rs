use config::ConfigSource;
use contract_id::contract;
use fleet::{Fleet, FleetConfig, FleetParts, HubCache};
use kv_blocks::{BlockSize, MediaHash, PromptIdentity};
use kv_index::{IndexSettings, KvIndex};
use proxy::FakeUpstream;
use routing::RoutingSection;

use super::*;
use crate::WorkerClient;

const SCHEME: HashScheme = HashScheme::Xxh3 { seed: 1337 };
const BUDGET: Duration = Duration::from_millis(2);

/// A stage whose fleet has no worker.
fn stage() -> TokenizationStage {
    let engine = engine(&Arc::default());
    TokenizationStage::new(
        SCHEME,
        BUDGET,
        Clock::system(),
        engine,
        &mut Registry::default(),
    )
}

/// A tokenizer that queries scripted workers.
pub(crate) fn engine(upstream: &Arc<FakeUpstream>) -> EngineTokenizer {
    EngineTokenizer::new(workers(upstream), &RoutingSection::default(), None)
}

/// A client of scripted workers, and of a fleet that has none.
fn workers(upstream: &Arc<FakeUpstream>) -> WorkerClient {
    let source = ConfigSource::of_text("test", "{}");
    let settings = config::load(source).expect("a valid configuration");
    let parts = FleetParts {
        config: FleetConfig::of(&settings),
        models: settings.models,
        kv_cache_index: settings.kv_cache_index,
        redis: None,
        max_prefix_length: 1024,
        hub_cache: HubCache::from_env(|_| None),
        index: Arc::new(KvIndex::new(IndexSettings::default())),
        scheme: SCHEME,
        earlier: Vec::new(),
        clock: Clock::system(),
        on_verdict: Arc::new(|_| {}),
    };
    let fleet = Fleet::start(parts, &mut Registry::default()).expect("it has no worker");
    WorkerClient {
        fleet: Arc::new(fleet),
        upstream: Arc::<FakeUpstream>::clone(upstream),
        clock: Clock::system(),
        connect_timeout: Duration::from_secs(1),
    }
}

/// Identifies the prompt of a body by these tokenizer files.
async fn identified(source: TokenizerSource, dialect: Dialect, body: &str) -> TokenizedPrompt {
    let artefacts = Arc::new(ModelArtefacts {
        source,
        ..ModelArtefacts::default()
    });
    identified_as(None, &artefacts, dialect, body).await
}

/// Identifies the prompt of a body, of this fidelity if one is given.
async fn identified_as(
    fidelity: Option<Fidelity>,
    artefacts: &Arc<ModelArtefacts>,
    dialect: Dialect,
    body: &str,
) -> TokenizedPrompt {
    let (stage, bytes) = (stage(), Bytes::from(body.to_owned()));
    let mut view = dialect::view(dialect, &bytes).expect("a good body");
    view.fidelity = fidelity.unwrap_or(view.fidelity);
    let input = PromptInput {
        dialect,
        bytes: &bytes,
        view: &view,
        deadline: Clock::system().now() + Duration::from_secs(20),
    };
    stage.run(artefacts, input).await
}

#[tokio::test]
async fn token_ids_of_the_client_are_its_prompt_whatever_the_model() {
    for source in [TokenizerSource::Remote, TokenizerSource::None] {
        let body = r#"{"model":"m","prompt":[1,2,3]}"#;
        let found = identified(source, Dialect::Completions, body).await;
        assert_eq!((found.source, found.tokens), (PromptSource::Given, 3));
        let blocks = found.blocks.expect("they are known");
        assert_eq!(blocks.identity(), PromptIdentity::Tokens);
    }
}

#[tokio::test]
async fn token_ids_that_the_engine_cuts_have_a_length_and_no_blocks() {
    let body = r#"{"model":"m","prompt":[1,2,3],"truncate_prompt_tokens":2}"#;
    let found = identified(TokenizerSource::None, Dialect::Completions, body).await;
    assert_eq!((found.source, found.tokens), (PromptSource::None, 3));
    assert!(found.blocks.is_none());
}

#[tokio::test]
#[contract("D2")]
async fn token_ids_with_pictures_have_the_blocks_that_the_events_of_the_engine_announce() {
    let body = r#"{"token_ids":[1,2,3,3,3,3,4,5],"features":{"mm_hashes":{"image":["a1"],"audio":["b2"]},"kwargs_data":null,
        "mm_placeholders":{"audio":[{"offset":6,"length":1}],"image":[{"offset":2,"length":4}]}}}"#;
    let found = identified(TokenizerSource::None, Dialect::TokenIds, body).await;
    assert_eq!((found.source, found.tokens), (PromptSource::Given, 8));
    let blocks = found.blocks.expect("all that they depend on is known");
    let scheme = HashScheme::default();
    let first = scheme.extend_with(None, &[1, 2, 3, 3], MediaHash::of([("a1", 2)]));
    let media = MediaHash::of([("a1", -2), ("b2", 2)]);
    let second = scheme.extend_with(Some(first), &[3, 3, 4, 5], media);
    assert_eq!(*blocks.chain(BlockSize::new(4).unwrap()), [first, second]);
    assert!(blocks.tokens().is_none(), "they alone do not identify it");
}

#[tokio::test]
async fn token_ids_beside_pictures_in_unknown_places_have_a_length_and_no_blocks() {
    for features in [
        r#"{"mm_hashes":{"image":["a1"]}}"#,
        r#"{"mm_hashes":{"image":["a1"]},"mm_placeholders":{"image":[]}}"#,
        r#"{"mm_hashes":{},"mm_placeholders":{"image":[{"offset":0,"length":1}]}}"#,
        r#"{"mm_hashes":{"image":["a1"]},"mm_placeholders":{"image":[{"offset":-1,"length":1}]}}"#,
        r#"{"mm_hashes":{"image":["a1","a2"]},"mm_placeholders":{"image":[{"offset":0,"length":2},{"offset":1,"length":1}]}}"#,
        "[]",
    ] {
        let body = format!(r#"{{"token_ids":[1,2,3],"features":{features}}}"#);
        let found = identified(TokenizerSource::None, Dialect::TokenIds, &body).await;
        assert_eq!((found.source, found.tokens), (PromptSource::None, 3));
        assert!(found.blocks.is_none(), "{features}");
    }
}

#[tokio::test]
async fn the_other_conversations_of_a_batch_add_to_its_length() {
    let long = "word ".repeat(400);
    let first = r#"[{"role":"user","content":"one"}]"#;
    let batch =
        format!(r#"{{"model":"m","messages":[{first},[{{"role":"user","content":"{long}"}}]]}}"#);
    let alone = format!(r#"{{"model":"m","messages":[{first}]}}"#);
    let batch = identified(TokenizerSource::None, Dialect::ChatBatch, &batch).await;
    let alone = identified(TokenizerSource::None, Dialect::ChatBatch, &alone).await;
    assert!(batch.tokens > alone.tokens + 300, "{}", batch.tokens);
    assert!(batch.new_tokens > alone.new_tokens + 300);
    let chain = |prompt: &TokenizedPrompt| {
        let blocks = prompt.blocks.as_ref().expect("its text stands for it");
        blocks.token_count()
    };
    assert_eq!(chain(&batch), chain(&alone));
}

#[tokio::test]
async fn without_a_tokenizer_or_a_worker_to_ask_the_text_stands_for_the_prompt() {
    for source in [TokenizerSource::None, TokenizerSource::Remote] {
        for (dialect, body) in [
            (
                Dialect::Completions,
                r#"{"model":"m","prompt":"some words"}"#,
            ),
            (
                Dialect::Chat,
                r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#,
            ),
        ] {
            let found = identified(source.clone(), dialect, body).await;
            assert_eq!(found.source, PromptSource::TextPrefix, "{body}");
            assert!(found.blocks.is_some() && found.tokens > 0, "{body}");
        }
    }
}

#[tokio::test]
async fn a_merely_similar_prompt_is_never_tokenized() {
    let artefacts = Arc::new(ModelArtefacts {
        source: TokenizerSource::Remote,
        ..ModelArtefacts::default()
    });
    let body = r#"{"model":"m","prompt":"some words"}"#;
    let found = identified_as(
        Some(Fidelity::Likeness),
        &artefacts,
        Dialect::Completions,
        body,
    )
    .await;
    assert_eq!(found.source, PromptSource::TextPrefix);
}

#[tokio::test]
async fn a_long_text_is_identified_beside_the_runtime_like_a_short_one() {
    let body = |text: &str| format!(r#"{{"model":"m","prompt":"{text}"}}"#);
    let (short, long) = ("a ".repeat(50), "a ".repeat(500_000));
    let mut tokens = Vec::new();
    for text in [short, long] {
        let body = body(&text);
        let found = identified(TokenizerSource::None, Dialect::Completions, &body).await;
        assert_eq!(found.source, PromptSource::TextPrefix);
        tokens.push(found.tokens);
    }
    assert!(tokens[1] > 1000 * tokens[0], "{tokens:?}");
}

/// A model whose tokens cost a microsecond a byte, so that two thousand bytes are within the
/// budget.
fn slow_model() -> Arc<ModelArtefacts> {
    let files = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/vllm-real/tiny-qwen");
    let read = |name: &str| std::fs::read(files.join(name)).expect("the fixture is there");
    let model = prompt::PromptModel::load(prompt::Artefacts {
        tokenizer_json: &read("tokenizer.json"),
        tokenizer_config: Some(&read("tokenizer_config.json")),
        chat_template: None,
    })
    .expect("the fixture is a model's own files");
    model.set_cost(1_000.0);
    Arc::new(ModelArtefacts {
        prompt: Some(Arc::new(model)),
        ..ModelArtefacts::default()
    })
}

/// Returns a chat of this many turns, some three hundred bytes each.
fn long_chat(turns: usize) -> Bytes {
    let message = |turn: usize| {
        let role = ["user", "assistant"][turn % 2];
        serde_json::json!({"role": role, "content": format!("{turn} {}", "word ".repeat(50))})
    };
    let messages: Vec<_> = (0..turns).map(message).collect();
    Bytes::from(serde_json::json!({"model": "m", "messages": messages}).to_string())
}

async fn chat_of(
    stage: &TokenizationStage,
    artefacts: &Arc<ModelArtefacts>,
    bytes: &Bytes,
) -> TokenizedPrompt {
    let view = dialect::view(Dialect::Chat, bytes).expect("a good body");
    let input = PromptInput {
        dialect: Dialect::Chat,
        bytes,
        view: &view,
        deadline: Clock::system().now() + Duration::from_secs(20),
    };
    stage.run(artefacts, input).await
}

#[tokio::test]
async fn a_chat_too_long_for_its_request_is_exact_from_its_next_turn_on() {
    let (stage, artefacts) = (stage(), slow_model());
    let first = chat_of(&stage, &artefacts, &long_chat(601)).await;
    assert_eq!(first.source, PromptSource::TextPrefix);
    while stage.conversations.conversations() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let next = chat_of(&stage, &artefacts, &long_chat(603)).await;
    assert_eq!(next.source, PromptSource::Tokens);
    assert!(next.new_tokens < 1_000, "{}", next.new_tokens);
    assert!(next.tokens > 20_000, "{}", next.tokens);
}

#[tokio::test]
#[contract("F75")]
async fn under_memory_pressure_no_prompt_is_tokenized_in_the_background() {
    let (stage, artefacts) = (stage(), slow_model());
    stage.set_accepts_new(false);
    let first = chat_of(&stage, &artefacts, &long_chat(601)).await;
    assert_eq!(first.source, PromptSource::TextPrefix);
    assert!(stage.background.is_idle());
    stage.set_accepts_new(true);
    chat_of(&stage, &artefacts, &long_chat(601)).await;
    while stage.conversations.conversations() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(stage.conversations.bytes() > 0);
    stage.shrink();
    assert_eq!(
        stage.conversations.conversations(),
        1,
        "it is less than half"
    );
}
