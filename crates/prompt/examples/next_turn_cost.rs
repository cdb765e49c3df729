//! Prints what the next turn of a long conversation costs, rendered, tokenized and hashed into
//! blocks: with the conversation remembered, with only the ids of its messages cached, and computed
//! whole: `cargo run --release -p prompt --example next_turn_cost`. With the argument `profile` it
//! computes ten turns of each kind, to count the instructions of `remembered` and the others.

use std::{error::Error, fmt, hint::black_box, path::PathBuf, sync::Arc, time::Instant};

use kv_blocks::{BlockSize, HashScheme, PromptBlocks};
use prompt::{
    Artefacts, ChatRequest, ConversationMemory, ConversationTurn, PromptModel, SaltGroup,
    sample_text,
};
use serde_json::{Value, json};

const SCHEME: HashScheme = HashScheme::Xxh3 { seed: 1337 };
const MESSAGE_BYTES: usize = 2_000;
/// Bytes of the messages that a measured turn adds to the one before.
const NEW_BYTES: usize = 500;
/// Turns that are measured.
const TURNS: usize = 61;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The size of a conversation.
#[derive(Clone, Copy)]
enum Size {
    Tokens(usize),
    Bytes(usize),
}

#[expect(clippy::print_stdout, reason = "it prints its measurements")]
fn main() -> Outcome<()> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let assets = root.join("../engine-sim/assets");
    let qwen = root.join("../../tests/fixtures/vllm-real/tiny-qwen");
    let profile = std::env::args().any(|argument| argument == "profile");
    println!("p50 (least) of {TURNS} turns, microseconds; blocks of 16 tokens");
    for files in [qwen, assets] {
        let tokenizer = std::fs::read(files.join("tokenizer.json"))?;
        let config = std::fs::read(files.join("tokenizer_config.json"))?;
        let artefacts = Artefacts {
            tokenizer_json: &tokenizer,
            tokenizer_config: Some(&config),
            chat_template: None,
        };
        let load = || PromptModel::load(artefacts);
        if profile {
            return ten_turns(&load()?, &load()?, Size::Tokens(100_000));
        }
        println!("{}", files.file_name().unwrap_or_default().display());
        for size in [
            Size::Tokens(8_000),
            Size::Tokens(32_000),
            Size::Tokens(100_000),
            Size::Bytes(400_000),
            Size::Bytes(800_000),
        ] {
            report(&load()?, &load()?, size)?;
        }
    }
    Ok(())
}

/// Returns a conversation of this size.
fn conversation(model: &PromptModel, text: &mut Text, size: Size) -> Outcome<Vec<Value>> {
    let mut messages = vec![json!({"role": "system", "content": text.next(MESSAGE_BYTES)})];
    loop {
        let json = Value::from(messages.clone()).to_string();
        let is_long_enough = match size {
            Size::Bytes(bytes) => json.len() >= bytes,
            Size::Tokens(tokens) => model.chat_tokens(&chat(&json), 0)?.tokens.len() >= tokens,
        };
        if is_long_enough {
            return Ok(messages);
        }
        for _ in 0..4 {
            text.exchange(&mut messages, MESSAGE_BYTES);
        }
    }
}

/// Computes turns, for a profiler.
fn ten_turns(model: &PromptModel, whole: &PromptModel, size: Size) -> Outcome<()> {
    let mut text = Text::new();
    let mut messages = conversation(whole, &mut text, size)?;
    let memory = ConversationMemory::default();
    first_turn(model, &memory, &messages)?;
    for _ in 0..10 {
        text.exchange(&mut messages, NEW_BYTES);
        let json = Value::from(messages.clone()).to_string();
        remembered(model, &memory, &json)?;
        by_cached_messages(model, &json)?;
        by_whole_text(whole, &json)?;
    }
    Ok(())
}

/// Computes the first turn, which is remembered.
fn first_turn(model: &PromptModel, memory: &ConversationMemory, messages: &[Value]) -> Outcome<()> {
    let json = Value::from(messages.to_vec()).to_string();
    let turn = ConversationTurn::find(model, memory, SaltGroup::UNSALTED, chat(&json)).render(0)?;
    hashed(&turn.tokenize(SCHEME)?.blocks);
    Ok(())
}

#[expect(clippy::print_stdout, reason = "it prints its measurements")]
fn report(model: &PromptModel, whole: &PromptModel, size: Size) -> Outcome<()> {
    let mut text = Text::new();
    let mut messages = conversation(whole, &mut text, size)?;
    let memory = ConversationMemory::default();
    first_turn(model, &memory, &messages)?;
    let mut costs = [const { Vec::new() }; 3];
    let (mut tokens, mut bytes) = (0, 0);
    for _ in 0..TURNS {
        text.exchange(&mut messages, NEW_BYTES);
        let json = Value::from(messages.clone()).to_string();
        let mut measure = |at: usize, work: &dyn Fn() -> Outcome<TokenIds>| -> Outcome<_> {
            let (cost, found) = timed(work)?;
            costs[at].push(cost);
            Ok(found)
        };
        let next = measure(0, &|| remembered(model, &memory, &json))?;
        let cached = measure(1, &|| by_cached_messages(model, &json))?;
        let all = measure(2, &|| by_whole_text(whole, &json))?;
        assert!(next == cached && next == all, "the ids are the same");
        (tokens, bytes) = (next.len(), json.len());
    }
    let [next, cached, all] = costs.map(quantiles);
    println!(
        "  {tokens:>7} tokens, {bytes:>7} bytes: next turn {next}, with cached messages {cached} ({:.1}x), whole {all} ({:.1}x)",
        cached.median / next.median,
        all.median / next.median
    );
    Ok(())
}

/// The ids of a prompt, whose blocks were hashed.
type TokenIds = std::sync::Arc<[u32]>;

#[inline(never)]
fn remembered(model: &PromptModel, memory: &ConversationMemory, json: &str) -> Outcome<TokenIds> {
    let turn = ConversationTurn::find(model, memory, SaltGroup::UNSALTED, chat(json)).render(0)?;
    Ok(hashed(&turn.tokenize(SCHEME)?.blocks))
}

#[inline(never)]
fn by_cached_messages(model: &PromptModel, json: &str) -> Outcome<TokenIds> {
    let text = model.chat_text(&chat(json), 0)?;
    black_box(model.new_bytes(SaltGroup::UNSALTED, &text, false));
    let ids = model.text_tokens(&text, false)?;
    Ok(hashed(&PromptBlocks::of_tokens(SCHEME, ids.into())))
}

/// Tokenizes the text in one piece: a prompt with special tokens has no cached parts, and the
/// tokenizer of the examples adds none.
#[inline(never)]
fn by_whole_text(model: &PromptModel, json: &str) -> Outcome<TokenIds> {
    let text = model.chat_text(&chat(json), 0)?;
    let ids = model.text_tokens(&text, true)?;
    Ok(hashed(&PromptBlocks::of_tokens(SCHEME, ids.into())))
}

fn hashed(blocks: &PromptBlocks) -> TokenIds {
    let size = BlockSize::new(16).expect("16 is a block size");
    black_box(blocks.chain(size));
    Arc::clone(blocks.tokens().expect("a chat has tokens"))
}

#[expect(clippy::disallowed_methods, reason = "it measures, nothing else")]
fn timed<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<(f64, T)> {
    let started = Instant::now();
    let done = work()?;
    Ok((started.elapsed().as_secs_f64() * 1e6, done))
}

struct Quantiles {
    least: f64,
    median: f64,
}

impl fmt::Display for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} ({:.0})", self.median, self.least)
    }
}

fn quantiles(mut costs: Vec<f64>) -> Quantiles {
    costs.sort_by(f64::total_cmp);
    Quantiles {
        least: costs[0],
        median: costs[costs.len() / 2],
    }
}

/// Text that does not repeat.
struct Text {
    all: String,
    at: usize,
}

impl Text {
    fn new() -> Self {
        Self {
            all: sample_text(2_000_000),
            at: 0,
        }
    }

    fn next(&mut self, bytes: usize) -> String {
        let end = self.all.floor_char_boundary(self.at + bytes);
        let text = self.all[self.at..end].to_owned();
        self.at = end;
        text
    }

    /// Adds a reply and the next message of the user.
    fn exchange(&mut self, messages: &mut Vec<Value>, bytes: usize) {
        messages.push(json!({"role": "assistant", "content": self.next(bytes)}));
        messages.push(json!({"role": "user", "content": self.next(bytes)}));
    }
}

fn chat(messages: &str) -> ChatRequest<'_> {
    ChatRequest {
        messages,
        tools: None,
        documents: None,
        chat_template: None,
        chat_template_kwargs: None,
        reasoning_effort: None,
        add_generation_prompt: true,
        continue_final_message: false,
        add_special_tokens: false,
    }
}
