//! Prints what the turns of a long conversation cost, for each of the two libraries, and how long a conversation a budget
//! of 2 ms covers: `cargo run --release -p prompt --example conversation_cost`.

use std::{error::Error, path::PathBuf, time::Instant};

use prompt::{Artefacts, ChatRequest, PromptModel, SaltGroup, sample_text};
use serde_json::{Value, json};

const MESSAGE_BYTES: usize = 2_000;
const MESSAGES: usize = 128;
const BUDGET_MS: f64 = 2.0;

fn main() -> Result<(), Box<dyn Error>> {
    let files =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vllm-real/tiny-qwen");
    let config = std::fs::read(files.join("tokenizer_config.json"))?;
    let json = std::fs::read_to_string(files.join("tokenizer.json"))?;
    // A step that the fast library does not read, and that leaves this text as it is.
    let mut for_reference: Value = serde_json::from_str(&json)?;
    for_reference["normalizer"] = json!({"type": "NFKC"});
    for json in [json, for_reference.to_string()] {
        let artefacts = Artefacts {
            tokenizer_json: json.as_bytes(),
            tokenizer_config: Some(&config),
            chat_template: None,
        };
        report(&PromptModel::load(artefacts)?)?;
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "it measures and prints, nothing else"
)]
fn report(model: &PromptModel) -> Result<(), Box<dyn Error>> {
    let sample = sample_text(MESSAGE_BYTES * (MESSAGES + 4));
    let mut rest = sample.as_str();
    let mut text = || {
        let (text, later) = rest.split_at(rest.floor_char_boundary(MESSAGE_BYTES));
        rest = later;
        text
    };
    let mut least = f64::INFINITY;
    for _ in 0..4 {
        let text = text();
        let started = Instant::now();
        model.text_tokens(text, false)?;
        least = least.min(started.elapsed().as_secs_f64() * 1e9 / text.len() as f64);
    }
    model.set_cost(least);
    println!("{}: {least:.0} ns a byte", model.tokenizer_engine());

    let within = |bytes: usize| model.predicted_cost(bytes).as_secs_f64() * 1e3 <= BUDGET_MS;
    let (mut whole, mut new) = (0, 0);
    let mut messages = Vec::new();
    for turn in 0..MESSAGES {
        messages.push(
            json!({"role": if turn % 2 == 0 { "user" } else { "assistant" }, "content": text()}),
        );
        let messages = Value::from(messages.clone()).to_string();
        let chat = ChatRequest {
            messages: &messages,
            tools: None,
            documents: None,
            chat_template: None,
            chat_template_kwargs: None,
            reasoning_effort: None,
            add_generation_prompt: true,
            continue_final_message: false,
            add_special_tokens: false,
        };
        let started = Instant::now();
        let text = model.chat_text(&chat, 0)?;
        let rendered = started.elapsed();
        let new_bytes = model.new_bytes(SaltGroup::UNSALTED, &text, false);
        let lookup_time = started.elapsed() - rendered;
        let started = Instant::now();
        model.text_tokens(&text, false)?;
        let tokenised = started.elapsed();
        whole += usize::from(within(text.len()));
        new += usize::from(within(new_bytes));
        if (turn + 1).is_power_of_two() {
            println!(
                "  {:>6} bytes, {new_bytes:>5} new: rendered in {rendered:.1?}, looked up in {lookup_time:.1?}, tokenised in {tokenised:.1?}",
                text.len()
            );
        }
    }
    println!(
        "  turns within {BUDGET_MS} ms: {whole} of {MESSAGES} by the whole text, {new} by what is new in it"
    );
    Ok(())
}
