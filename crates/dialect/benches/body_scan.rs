//! Prints the time to read the routing fields of a chat, and to identify it by its text, by its
//! length and kind, and how often the body could have been copied meanwhile:
//! `cargo bench -p dialect --bench body_scan`.

use std::{hint::black_box, time::Instant};

use dialect::{Dialect, PromptPart, chat_identity, view};

const TIMES: usize = 200;

fn main() {
    for (kind, text) in [
        (
            "prose",
            "The chain slips under load on the smallest cog, he said twice already. ",
        ),
        (
            "code",
            "fn main() {\\n    let x = \\\"hello\\\";\\n    println!(\\\"{x}\\\");\\n}\\n// about nothing\\n",
        ),
        (
            "chinese",
            "链条在最小的齿轮上负载时打滑，他已经说过两次了。",
        ),
    ] {
        for kilobytes in [32, 400, 800] {
            report(kind, &chat(kilobytes * 1024, text));
        }
    }
}

/// A chat of about this many bytes in turns of some 2 KB.
fn chat(bytes: usize, text: &str) -> String {
    let content = text.repeat(2000 / text.len() + 1);
    let turn = |at: usize| {
        let role = ["user", "assistant"][at % 2];
        format!(r#"{{"role": "{role}", "content": "{content}"}}"#)
    };
    let turns: Vec<_> = (0..bytes / turn(1).len()).map(turn).collect();
    format!(
        r#"{{"model": "m", "messages": [{}], "stream": true, "max_tokens": 100}}"#,
        turns.join(", ")
    )
}

#[expect(clippy::print_stdout, reason = "it measures and prints, nothing else")]
fn report(kind: &str, body: &str) {
    let read = median_us(|| {
        black_box(view(Dialect::Chat, black_box(body.as_bytes()))).expect("a good body");
    });
    let fields = view(Dialect::Chat, body.as_bytes()).expect("a good body");
    let PromptPart::Messages(messages) = &fields.prompt else {
        panic!("a chat")
    };
    let identity = median_us(|| drop(black_box(chat_identity(black_box(messages), None))));
    let copy = median_us(|| drop(black_box(body.as_bytes().to_vec())));
    for (step, us) in [("fields", read), ("identity", identity)] {
        let rate = body.len() as f64 / us / 1e3;
        println!(
            "{kind:>8}, {:>6} bytes, {step:>8}: {us:>7.1} us, {rate:>5.1} GB/s, {:>5.1} copies",
            body.len(),
            us / copy
        );
    }
}

/// The median: other work on the machine is in the mean.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn median_us(mut work: impl FnMut()) -> f64 {
    let mut took: Vec<_> = (0..TIMES)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[TIMES / 2].as_secs_f64() * 1e6
}
