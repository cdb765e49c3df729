//! Prints what a view of a million prefixes costs: `cargo run --release -p prefix-view --example prefix_view_cost`.

use std::{error::Error, num::NonZeroUsize, sync::Arc, time::Duration, time::Instant};

use kv_blocks::{Moment, SequenceHash};
use prefix_view::{
    EventKind, MemoryPrefixIndex, PrefixEvent, PrefixHash, PrefixIndex, ViewSettings,
};

const PREFIXES: u64 = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    // All are kept: what one of them frees would hide what the next one takes.
    let mut indexes = Vec::new();
    for backends in [1, 2, 8] {
        indexes.push(fill_and_query(backends)?);
    }
    Ok(())
}

/// Spread as hashes are.
fn prefix(number: u64) -> PrefixHash {
    PrefixHash::Sequence(SequenceHash(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

fn moment(number: u64) -> Moment {
    Moment::at(Duration::from_micros(number))
}

#[expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "it measures and prints, nothing else"
)]
fn fill_and_query(backends: u64) -> Result<MemoryPrefixIndex, Box<dyn Error>> {
    let names: Vec<Arc<str>> = (0..backends)
        .map(|number| Arc::from(format!("vllm-{number}")))
        .collect();
    let index = MemoryPrefixIndex::new(ViewSettings {
        max_entries: NonZeroUsize::new(1_000_000).ok_or("0")?,
        ..ViewSettings::default()
    });
    let before = resident_bytes()?;
    let started = Instant::now();
    for number in 0..PREFIXES {
        for name in &names {
            let event = PrefixEvent {
                kind: EventKind::Created,
                prefix: prefix(number),
                token_count: Some(512),
            };
            index.record(name, &event, moment(number))?;
        }
    }
    let entries = PREFIXES * backends;
    let record = started.elapsed().as_nanos() / u128::from(entries);
    let bytes = (resident_bytes()? - before) / entries;

    let started = Instant::now();
    let mut hits = 0;
    for number in 0..PREFIXES {
        hits += index
            .query(&prefix(number), moment(PREFIXES + number))?
            .len();
    }
    let query = started.elapsed().as_nanos() / u128::from(PREFIXES);
    let started = Instant::now();
    for number in PREFIXES..2 * PREFIXES {
        hits += index
            .query(&prefix(number), moment(PREFIXES + number))?
            .len();
    }
    let miss = started.elapsed().as_nanos() / u128::from(PREFIXES);

    let started = Instant::now();
    let event = PrefixEvent {
        kind: EventKind::Created,
        prefix: prefix(PREFIXES),
        token_count: Some(512),
    };
    index.record(&names[0], &event, moment(3 * PREFIXES))?;
    let eviction = started.elapsed().as_millis();
    println!(
        "{backends} backends: {bytes} bytes an entry, record {record} ns, query {query} ns, query of nothing {miss} ns, \
         eviction of {} prefixes {eviction} ms ({hits} found)",
        index.stats().evicted_prefixes
    );
    Ok(index)
}

/// Memory of this process, by the kernel's count of 4 KiB pages.
fn resident_bytes() -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    Ok(text
        .split(' ')
        .nth(1)
        .ok_or("statm has no second field")?
        .parse::<u64>()?
        * 4096)
}
