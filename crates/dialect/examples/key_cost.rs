//! Prints how long the key of a request takes, by the length and kind of its body:
//! `cargo run --release -p dialect --example key_cost`.

use std::{hint::black_box, time::Instant};

use dialect::RepeatabilityView;

const TIMES: u32 = 2_000;

fn main() {
    for bytes in [512, 2 * 1024, 4 * 1024, 64 * 1024] {
        let words =
            "The chain slips under load on the smallest cog; said \\\"twice\\\" already.\\n";
        let prompt = words.repeat(bytes / words.len());
        report(
            "one text",
            &format!(
                r#"{{"model":"m","messages":[{{"role":"user","content":"{prompt}"}}],"seed":1}}"#
            ),
        );
        let turn = |at: usize| {
            let role = if at.is_multiple_of(2) {
                "user"
            } else {
                "assistant"
            };
            format!(r#"{{"role": "{role}", "content": "{}"}}"#, words.repeat(4))
        };
        let turns: Vec<_> = (0..bytes / (words.len() * 4 + 32)).map(turn).collect();
        let settings =
            r#""model": "m", "temperature": 0, "max_tokens": 256, "stream": true, "top_p": 1"#;
        report(
            "many turns",
            &format!(r#"{{{settings}, "messages": [{}]}}"#, turns.join(", ")),
        );
        let tokens: Vec<_> = (0..bytes / 6)
            .map(|at| (at * 7919 % 9_000 + 1_000).to_string())
            .collect();
        report(
            "token ids",
            &format!(r#"{{{settings}, "prompt": [{}]}}"#, tokens.join(", ")),
        );
    }
}

/// The median: other work on the machine is in the mean.
#[expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "it measures and prints, nothing else"
)]
fn report(kind: &str, body: &str) {
    let mut took: Vec<_> = (0..TIMES)
        .map(|_| {
            let started = Instant::now();
            let read = RepeatabilityView::read(black_box(body.as_bytes()))
                .map(|read| read.key("default", "/v1/completions", &[]));
            black_box(read);
            started.elapsed()
        })
        .collect();
    took.sort_unstable();
    let micros = took[took.len() / 2].as_secs_f64() * 1e6;
    println!("{kind:>10}, {:>6} bytes: {micros:>7.2} us", body.len());
}
