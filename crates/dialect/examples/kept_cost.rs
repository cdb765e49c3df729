//! Prints how long it takes to put a stream together and to make one of what is kept, by the number of its tokens:
//! `cargo run --release -p dialect --example kept_cost`.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use dialect::{Dialect, StreamObject, replay};

const TIMES: u32 = 200;

#[expect(clippy::print_stdout, reason = "it measures and prints, nothing else")]
fn main() {
    for tokens in [100, 1_000, 10_000] {
        let chunk = |delta: &str, reason: &str| {
            format!(
                "data: {{\"id\":\"chatcmpl-8f82b55c88395394\",\"object\":\"chat.completion.chunk\",\"created\":1795193978,\
                 \"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{reason},\
                 \"token_ids\":null}}]}}\n\n"
            )
        };
        let stream = chunk("{\"content\":\" chain\"}", "null").repeat(tokens);
        let ends = [
            chunk("{\"role\":\"assistant\",\"content\":\"\"}", "null"),
            chunk("{}", "\"stop\""),
        ];
        let stream = format!("{}{stream}{}data: [DONE]\n\n", ends[0], ends[1]);
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(1_400).collect();
        let Ok(stored) = StreamObject::read(Dialect::Chat, &pieces) else {
            continue;
        };
        let reading = median(|| {
            drop(black_box(StreamObject::read(
                Dialect::Chat,
                black_box(&pieces),
            )))
        });
        let replaying = median(|| {
            drop(black_box(replay(
                Dialect::Chat,
                black_box(&stored.body),
                false,
            )))
        });
        println!(
            "{tokens:>6} tokens, {:>8} bytes of stream, {:>6} kept: read {reading:>10.1?}, replayed {replaying:>8.1?}",
            stream.len(),
            stored.body.len()
        );
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn median(mut work: impl FnMut()) -> Duration {
    let mut took: Vec<_> = (0..TIMES)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[took.len() / 2]
}
