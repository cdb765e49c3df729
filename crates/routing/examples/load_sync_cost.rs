//! What load sync costs a router: 2,000 workers, prompts of 1,000 tokens in blocks of 16.
//!
//! ```sh
//! cargo run --release -p routing --features lock-observer --example load_sync_cost
//! ```
//!
//! All times are the thread's processor time, so that other programs do not count. The allocator returns freed memory to
//! the system now and then, in the middle of a hold; `MALLOC_TRIM_THRESHOLD_=10000000000` keeps glibc from it. Memory is
//! what the process grew by.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it is there to measure and to print"
)]

use std::{cell::RefCell, fs, sync::Arc, time::Duration};

use kv_blocks::{DpRank, Moment, SequenceHash, Target, WorkerId};
use kv_index::{IndexSettings, KvIndex};
use routing::{
    DispatchLoad, LoadChange, LoadPage, LockEvent, OpenLoad, PeerId, PrefillSample, ReservationId,
    Router, RoutingSettings, SequenceBlocks, SpeedSample, observe_lock,
};
use rustix::time::{ClockId, clock_gettime};

const WORKERS: u32 = 2_000;
const BLOCKS: u64 = 63;
/// Requests of one peer.
const REQUESTS: u64 = 100_000;
/// Changes in a message.
const MESSAGE: usize = 64;
/// Open reservations of a peer whose state is taken over.
const OPEN: u64 = 20_000;

thread_local! {
    static HOLDS: RefCell<(Option<Duration>, Vec<Duration>)> = RefCell::default();
}

fn note(event: LockEvent) {
    HOLDS.with_borrow_mut(|(taken, holds)| match event {
        LockEvent::Acquired => *taken = Some(thread_cpu()),
        LockEvent::Released => holds.extend(taken.take().map(|then| thread_cpu() - then)),
    });
}

fn main() {
    observe_lock(note);
    let index = Arc::new(KvIndex::new(IndexSettings::default()));
    let router = Router::new(RoutingSettings::default(), index);
    println!("| what | calls or changes | each, us | lock held, us: p50 | p99 | longest |");
    println!("|---|--:|--:|--:|--:|--:|");
    let before = memory_kib();
    for (name, change) in [
        ("beginnings", opened as fn(u64) -> LoadChange),
        ("first tokens", first_token),
        ("speed samples", sample),
        ("ends", closed),
    ] {
        let changes: Vec<LoadChange> = (1..=REQUESTS).map(change).collect();
        measure(name, REQUESTS, || {
            for message in changes.chunks(MESSAGE) {
                router.apply_peer_changes(Moment::START, PeerId(1), message.to_vec());
            }
        });
        if name == "beginnings" {
            let grown = (memory_kib() - before) as f64 * 1024.0 / REQUESTS as f64;
            println!(
                "| memory of an open reservation with its hashes | | {grown:.0} bytes | | | |"
            );
        }
    }
    let page = |open: u64| LoadPage {
        after: ReservationId::default(),
        through: None,
        loads: (1..=open).map(open_load).collect(),
    };
    let whole = page(OPEN);
    measure("state of a peer", OPEN, || {
        router.apply_peer_page(Moment::START, PeerId(2), whole);
    });
    let same = page(OPEN);
    measure("the same again", OPEN, || {
        router.apply_peer_page(Moment::START, PeerId(2), same);
    });
    measure("a dead peer", OPEN, || {
        router.drop_peer(Moment::START, PeerId(2));
    });
}

fn measure(name: &str, changes: u64, act: impl FnOnce()) {
    HOLDS.with_borrow_mut(|(_, holds)| holds.clear());
    let started = thread_cpu();
    act();
    let each = (thread_cpu() - started).as_secs_f64() * 1e6 / changes as f64;
    let mut holds = HOLDS.with_borrow(|(_, holds)| holds.clone());
    holds.sort_unstable();
    let at = |share: usize| {
        let position = (holds.len().saturating_sub(1)) * share / 100;
        holds
            .get(position)
            .map_or(0.0, |hold| hold.as_secs_f64() * 1e6)
    };
    println!(
        "| {name} | {changes} | {each:.2} | {:.1} | {:.1} | {:.1} |",
        at(50),
        at(99),
        at(100)
    );
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

fn target(number: u64) -> Target {
    Target {
        worker: WorkerId(u32::try_from(number % u64::from(WORKERS)).unwrap_or(0)),
        rank: DpRank(0),
    }
}

/// A prompt whose first half is one of 500.
fn open_load(number: u64) -> OpenLoad {
    let half = BLOCKS / 2;
    let hash = |block: u64| {
        let owner = if block < half {
            number % 500
        } else {
            number + 1_000
        };
        SequenceHash(owner << 20 | block)
    };
    OpenLoad {
        id: ReservationId(number),
        target: Some(target(number * 7919)),
        load: Arc::new(DispatchLoad {
            prompt_tokens: 1_000,
            uncached_tokens: 500,
            prefill_ms: 70.0,
            blocks: SequenceBlocks {
                chain: Some((0..BLOCKS).map(hash).collect()),
                fingerprint: 1,
                unshared: 1,
            },
            ..DispatchLoad::default()
        }),
        first_token: false,
        age_ms: 0.0,
    }
}

fn opened(number: u64) -> LoadChange {
    LoadChange::Opened(open_load(number))
}

fn first_token(number: u64) -> LoadChange {
    LoadChange::FirstToken {
        id: ReservationId(number),
    }
}

fn sample(number: u64) -> LoadChange {
    LoadChange::Sample(SpeedSample {
        worker: target(number).worker,
        first_token_ms: Some(70.0),
        prefill: Some(PrefillSample {
            start: 500,
            tokens: 400 + u32::try_from(number % 200).unwrap_or(0),
            ms: 70.0 + (number % 13) as f64,
        }),
    })
}

fn closed(number: u64) -> LoadChange {
    LoadChange::Closed {
        id: ReservationId(number),
        prompt_received: true,
        succeeded: Some(true),
    }
}

/// Resident memory of this process.
fn memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}
