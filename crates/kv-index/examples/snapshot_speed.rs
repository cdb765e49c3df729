//! How long an index takes to save itself, and another one to load that.
//!
//! `cargo run --release -p kv-index --example snapshot_speed -- --blocks 1000000 --depth 50 --targets 64 --holders 4`:
//! conversations of so many blocks, each announced by name by so many targets. The longest piece is the longest time
//! between two moments with the lock free, so no hold of the lock was longer. With `--updates 1` a thread stores and
//! removes blocks meanwhile. Exit code 1 if what was loaded is not what was saved.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "that is what it is for"
)]

#[path = "flags/mod.rs"]
mod flags;

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use flags::ExampleFlags;
use kv_blocks::{
    BlockSize, DpRank, EngineHash, IndexUpdate, RemovedBlocks, StoredBlocks, Target, Tier, WorkerId,
};
use kv_index::{IndexSettings, KvIndex};

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn main() -> ExitCode {
    let defaults = [
        ("--blocks", 1_000_000),
        ("--depth", 50),
        ("--targets", 64),
        ("--holders", 4),
        ("--budget", 512 << 20),
        ("--updates", 0),
    ];
    let flags = ExampleFlags::read("snapshot_speed", &defaults);
    let empty = || {
        KvIndex::new(IndexSettings {
            memory_budget: flags.number("--budget"),
            ..IndexSettings::default()
        })
    };
    let full = empty();
    fill(&full, &flags);
    let mut file = Vec::new();
    let started = Instant::now();
    let (mut holds, mut longest, mut last) = (0, Duration::ZERO, started);
    let done = AtomicBool::new(flags.number("--updates") == 0);
    let (saved, updates) = thread::scope(|scope| {
        let updating = scope.spawn(|| update_until(&full, &done));
        let saved = full.save_in_pieces(&mut file, KvIndex::ITEMS_PER_HOLD, &mut || {
            holds += 1;
            longest = longest.max(last.elapsed());
            thread::yield_now();
            last = Instant::now();
        });
        done.store(true, Ordering::Relaxed);
        (saved, updating.join().expect("it only applies updates"))
    });
    let saved = saved.expect("memory takes what is written");
    let save_s = started.elapsed().as_secs_f64();
    let copy_s = last.duration_since(started).as_secs_f64();
    let other = empty();
    let started = Instant::now();
    let loaded = match other.load(&mut &file[..]) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let load_s = started.elapsed().as_secs_f64();
    println!(
        "{} blocks, {} memberships, {} targets: {} bytes in memory, {} in the file; save {save_s:.3} s, load {load_s:.3} s",
        saved.blocks,
        saved.memberships,
        saved.targets,
        full.stats().bytes,
        saved.bytes
    );
    println!(
        "{holds} holds of the lock in the first {copy_s:.3} s, the longest piece {:.3} ms; {updates} updates meanwhile",
        longest.as_secs_f64() * 1e3
    );
    if updates > 0 {
        return ExitCode::SUCCESS;
    }
    if other.digest() != full.digest() || loaded.shed > 0 {
        eprintln!(
            "not all came back: {loaded:?} of {saved:?}, which shed {} before",
            full.stats().shed
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Stores and removes a block until the save is done. Returns the number of updates.
fn update_until(index: &KvIndex, done: &AtomicBool) -> u64 {
    let target = Target {
        worker: WorkerId(0),
        rank: DpRank(0),
    };
    let (hash, tier) = (EngineHash(9), Tier::Device);
    let stored = IndexUpdate::Stored(StoredBlocks {
        hashes: vec![hash],
        parent: None,
        tokens: vec![u32::MAX],
        block_size: BlockSize::new(1).expect("a valid size"),
        lora: None,
        media: Vec::new(),
        salt: None,
        tier,
    });
    let removed = IndexUpdate::Removed(RemovedBlocks {
        hashes: vec![hash],
        tier,
    });
    let mut updates = 0;
    while !done.load(Ordering::Relaxed) {
        index.apply(target, &stored);
        index.apply(target, &removed);
        updates += 2;
    }
    updates
}

/// Conversations of their own from the first block on, one token a block.
fn fill(index: &KvIndex, flags: &ExampleFlags) {
    let number = |name| u32::try_from(flags.number(name)).expect("numbers of 32 bits");
    let (blocks, depth, targets) = (
        number("--blocks"),
        number("--depth").max(1),
        number("--targets").max(1),
    );
    let target = |number: u32| Target {
        worker: WorkerId(number % targets),
        rank: DpRank(0),
    };
    for worker in 0..targets {
        index.register(target(worker), Arc::from("m"));
    }
    for first in (0..blocks).step_by(depth as usize) {
        let tokens: Vec<u32> = (first..blocks.min(first.saturating_add(depth))).collect();
        let update = IndexUpdate::Stored(StoredBlocks {
            hashes: tokens
                .iter()
                .map(|token| EngineHash(u64::from(*token) << 32 | 7))
                .collect(),
            parent: None,
            tokens,
            block_size: BlockSize::new(1).expect("a valid size"),
            lora: None,
            media: Vec::new(),
            salt: None,
            tier: Tier::Device,
        });
        for holder in 0..number("--holders") {
            index.apply(
                target((first / depth).wrapping_mul(7).wrapping_add(holder)),
                &update,
            );
        }
    }
}
