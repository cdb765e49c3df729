//! Prints what tokenising costs here, for each of the two libraries: `cargo run -p prompt --example tokenize_cost`.

use std::{error::Error, path::PathBuf, time::Instant};

use prompt::{Artefacts, PromptModel, sample_text};

const TEXT_BYTES: usize = 35_000;
const RUNS: usize = 12;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    for file in [
        "tests/fixtures/vllm-real/tiny-qwen/tokenizer.json",
        "crates/engine-sim/assets/tokenizer.json",
    ] {
        let json = std::fs::read_to_string(root.join(file))?;
        // The fast library is not given files with tokens that are to match whole words only.
        let for_reference = json.replace("\"single_word\": false", "\"single_word\":false");
        let for_reference =
            for_reference.replacen("\"single_word\":false", "\"single_word\":true", 1);
        for json in [json, for_reference] {
            report(file, json.as_bytes())?;
        }
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "it measures and prints, nothing else"
)]
fn report(file: &str, json: &[u8]) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let model = PromptModel::load(Artefacts {
        tokenizer_json: json,
        tokenizer_config: None,
        chat_template: None,
    })?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    let text = sample_text(TEXT_BYTES * RUNS);
    let mut text = text.as_str();
    let (mut took, mut tokens) = (Vec::new(), 0);
    while text.len() >= TEXT_BYTES {
        let (prompt, rest) = text.split_at(text.floor_char_boundary(TEXT_BYTES));
        text = rest;
        let started = Instant::now();
        tokens = model.text_tokens(prompt, false)?.len();
        took.push(started.elapsed().as_secs_f64() * 1e9 / prompt.len() as f64);
    }
    let first = took[0];
    took.sort_by(f64::total_cmp);
    println!(
        "{file}\n  {} (self-test {}), load {load_ms:.0} ms, {tokens} tokens of {TEXT_BYTES} bytes",
        model.tokenizer_engine(),
        model.self_test()
    );
    println!(
        "  ns a byte: least {:.1}, median {:.1}, first {first:.1}; {TEXT_BYTES} bytes in {:.2} ms (median)",
        took[0],
        took[took.len() / 2],
        took[took.len() / 2] * TEXT_BYTES as f64 / 1e6
    );
    for (what, text) in [("a", "a"), ("space", " "), ("newline", "\n"), ("^", "^")] {
        for bytes in [16 << 10, 64 << 10, 1 << 20] {
            let text = text.repeat(bytes);
            let started = Instant::now();
            let _ = model.text_tokens(&text, false)?;
            let took = started.elapsed().as_secs_f64();
            println!(
                "    {bytes} times {what}: {:.1} ms, {:.0} ns a byte",
                took * 1e3,
                took * 1e9 / bytes as f64
            );
        }
    }
    Ok(())
}
