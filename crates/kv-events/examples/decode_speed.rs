//! Blocks decoded and hashed per second by one core, and what an index takes in of the same.
//!
//! `bench/decode/run.sh` runs it beside Python on the same bytes. By hand:
//! `cargo run --release -p kv-events --example decode_speed -- FILE` writes the batches to FILE (each behind its length, four
//! bytes, big-endian) and measures.

#![expect(clippy::print_stdout, reason = "that is what it is for")]

use std::{
    hint::black_box,
    io::Write,
    time::{Duration, Instant},
};

use kv_blocks::{DpRank, HashScheme, IndexUpdate, Target, WorkerId};
use kv_events::vllm::{EventEncoding, Normaliser, WireEvent, WireStored, decode, encode};
use kv_index::{IndexSettings, KvIndex};

const BATCHES: u64 = 2_000;
/// Prompts stored by one batch, and blocks of each.
const EVENTS: u64 = 4;
const BLOCKS: u64 = 32;
const BLOCK: u32 = 16;
/// Each figure is the best of so many passes: other work on the machine only ever makes one worse.
const PASSES: usize = 7;

fn main() -> std::io::Result<()> {
    let batches: Vec<_> = (0..BATCHES).map(batch).collect();
    if let Some(file) = std::env::args().nth(1) {
        let mut file = std::io::BufWriter::new(std::fs::File::create(file)?);
        for batch in &batches {
            file.write_all(
                &u32::try_from(batch.len())
                    .expect("a batch is small")
                    .to_be_bytes(),
            )?;
            file.write_all(batch)?;
        }
        file.flush()?;
    }
    let all: Vec<_> = batches.iter().flat_map(|batch| updates(batch)).collect();
    let bytes: usize = batches.iter().map(Vec::len).sum();
    println!(
        "batches {BATCHES}, blocks {}, bytes {bytes}, block size {BLOCK}",
        blocks()
    );
    println!("checksum {:016x}", checksum(&batches));

    report(
        "decode",
        best(|| {
            batches
                .iter()
                .filter(|batch| decode(black_box(batch)).is_ok())
                .count()
        }),
    );
    report(
        "decode_and_mean",
        best(|| {
            batches
                .iter()
                .map(|batch| updates(black_box(batch)).count())
                .sum::<usize>()
        }),
    );
    report("decode_mean_and_hash", best(|| checksum(&batches)));
    report(
        "ingest_decoded",
        best_into_fresh(|index| all.iter().for_each(|update| apply(index, update))),
    );
    report(
        "decode_mean_and_ingest",
        best_into_fresh(|index| {
            batches
                .iter()
                .flat_map(|batch| updates(batch))
                .for_each(|update| apply(index, &update));
        }),
    );
    Ok(())
}

fn blocks() -> u64 {
    BATCHES * EVENTS * BLOCKS
}

/// Prompts from the root, each with tokens of its own, as a tokenizer of 150,000 words gives them.
fn batch(number: u64) -> Vec<u8> {
    let event = |event: u64| {
        let prompt = number * EVENTS + event;
        let number = |at: u64| (prompt * 1_000_003 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let token = |at: u64| u32::try_from(number(at) % 150_000).expect("a token fits");
        WireEvent::Stored(WireStored {
            hashes: (0..BLOCKS)
                .map(|block| (number(block) << 20 | block | 1 << 63).into())
                .collect(),
            tokens: (0..BLOCKS * u64::from(BLOCK)).map(token).collect(),
            block_size: BLOCK,
            medium: Some("GPU".into()),
            ..WireStored::default()
        })
    };
    let events: Vec<_> = (0..EVENTS).map(event).collect();
    encode(1_700_000_000.5, Some(0), &events, EventEncoding::CURRENT)
}

fn updates(batch: &[u8]) -> impl Iterator<Item = IndexUpdate> + use<> {
    let mut normaliser = Normaliser::default();
    let events = decode(batch).expect("it was encoded a moment ago").events;
    events
        .into_iter()
        .flatten()
        .filter_map(move |event| normaliser.update(&event).ok())
}

/// The last sequence hashes of all events in one number, to which the Python side has to come as well.
fn checksum(batches: &[Vec<u8>]) -> u64 {
    let all = batches.iter().flat_map(|batch| updates(black_box(batch)));
    all.fold(0, |sum, update| sum ^ last_hash(&update))
}

fn last_hash(update: &IndexUpdate) -> u64 {
    let IndexUpdate::Stored(stored) = update else {
        return 0;
    };
    let chain = HashScheme::default().chain(None, &stored.tokens, stored.block_size);
    chain.last().map_or(0, |hash| hash.0)
}

fn target() -> Target {
    Target {
        worker: WorkerId(0),
        rank: DpRank(0),
    }
}

fn apply(index: &KvIndex, update: &IndexUpdate) {
    black_box(index.apply(target(), update));
}

fn best<T>(mut pass: impl FnMut() -> T) -> Duration {
    let passes = (0..PASSES).map(|_| {
        time(|| {
            black_box(pass());
        })
    });
    passes.min().expect("there are passes")
}

fn best_into_fresh(mut pass: impl FnMut(&KvIndex)) -> Duration {
    let passes = (0..PASSES).map(|_| {
        let index = KvIndex::new(IndexSettings::default());
        index.register(target(), "m".into());
        let took = time(|| pass(&index));
        assert_eq!(
            index.blocks_per_tier(target())[0],
            blocks(),
            "everything was taken in"
        );
        took
    });
    passes.min().expect("there are passes")
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn time(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

fn report(what: &str, took: Duration) {
    #[expect(clippy::cast_precision_loss, reason = "a rate need not be exact")]
    let per_second = blocks() as f64 / took.as_secs_f64();
    println!("{what} {per_second:.0} blocks/s");
}
