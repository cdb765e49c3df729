//! Prints the time to hash the blocks of a prompt that is known as text, by its length and the size
//! of a block: `cargo bench -p kv-blocks --bench text_chain`.

use std::{hint::black_box, time::Instant};

use kv_blocks::{BlockSize, PromptBlocks};

const TIMES: usize = 200;

#[expect(clippy::print_stdout, reason = "it measures and prints, nothing else")]
fn main() {
    for kilobytes in [32, 400, 800] {
        let text: Vec<u8> = (b' '..=b'z').cycle().take(kilobytes * 1024).collect();
        for tokens in [16, 32, 128] {
            let Ok(size) = BlockSize::new(tokens) else {
                continue;
            };
            let took = median_us(&text, |text| {
                black_box(PromptBlocks::of_text(text).chain(size));
            });
            println!(
                "{kilobytes:>3} KB in blocks of {tokens:>3} tokens: {took:>6.1} us, {:>5.1} GB/s",
                text.len() as f64 / took / 1e3
            );
        }
    }
}

/// The median: other work on the machine is in the mean.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn median_us(text: &[u8], mut work: impl FnMut(Vec<u8>)) -> f64 {
    let mut took: Vec<_> = (0..TIMES)
        .map(|_| {
            let text = text.to_vec();
            let started = Instant::now();
            work(black_box(text));
            started.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[TIMES / 2].as_secs_f64() * 1e6
}
