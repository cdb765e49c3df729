//! Allocations of the view.

use contract_id::contract;

use super::*;

fn large() -> MemoryPrefixIndex {
    let max_entries = NonZeroUsize::new(1_000_000).unwrap();
    MemoryPrefixIndex::new(ViewSettings {
        max_entries,
        ..ViewSettings::default()
    })
}

/// Spreads numbers like hashes.
fn spread(number: u64) -> PrefixHash {
    prefix(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn fill(view: &MemoryPrefixIndex, prefixes: u64, backends: u64) {
    let names: Vec<Arc<str>> = (0..backends)
        .map(|number| Arc::from(format!("vllm-{number}")))
        .collect();
    for number in 0..prefixes {
        for name in &names {
            let created = PrefixEvent {
                kind: EventKind::Created,
                prefix: spread(number),
                token_count: Some(512),
            };
            view.record(name, &created, second(1)).unwrap();
        }
    }
}

#[test]
#[contract("CK80")]
fn a_query_without_holders_allocates_nothing() {
    let view = large();
    fill(&view, 1_000, 2);
    let allocations = allocation_counter::measure(|| {
        for number in 1_000..2_000 {
            assert!(view.query(&spread(number), second(2)).unwrap().is_empty());
        }
    });
    assert_eq!(allocations.count_total, 0);
    let found = allocation_counter::measure(|| {
        assert_eq!(view.query(&spread(7), second(2)).unwrap().len(), 2)
    });
    assert!(found.count_total > 0, "it is counted at all");
}

#[test]
#[contract("CK82")]
fn a_pair_of_prefix_and_backend_takes_about_200_bytes_at_most() {
    for (prefixes, backends) in [
        (10_000, 1),
        (100_000, 1),
        (100_000, 2),
        (30_000, 8),
        (70_000, 1),
    ] {
        let view = large();
        let taken = allocation_counter::measure(|| fill(&view, prefixes, backends)).bytes_current;
        let bytes = u64::try_from(taken).unwrap() / (prefixes * backends);
        println!("{prefixes} prefixes, {backends} backends: {bytes} bytes a pair");
        assert!(
            (20..=200).contains(&bytes),
            "{prefixes} prefixes, {backends} backends: {bytes} bytes a pair"
        );
    }
}

#[test]
#[contract("CK80")]
#[expect(
    clippy::disallowed_methods,
    reason = "it measures real time, within a bound that a busy machine keeps"
)]
fn a_query_takes_less_than_a_tenth_of_a_millisecond() {
    let view = large();
    fill(&view, 20_000, 8);
    let started = std::time::Instant::now();
    for number in 0..40_000 {
        let holders = view.query(&spread(number), second(2)).unwrap();
        assert_eq!(holders.len(), if number < 20_000 { 8 } else { 0 });
    }
    // The mean: a single query may wait for the processor.
    let mean = started.elapsed() / 40_000;
    assert!(mean < Duration::from_micros(100), "{mean:?}");
}
