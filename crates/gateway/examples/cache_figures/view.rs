//! The view of prefixes in memory.

use std::{error::Error, hint::black_box, num::NonZeroUsize, sync::Arc};

use allocation_counter::measure;
use kv_blocks::{Moment, SequenceHash};
use prefix_view::{
    EventKind, MemoryPrefixIndex, PrefixEvent, PrefixHash, PrefixIndex, Unavailable, ViewSettings,
};

use crate::{figures::BoundedFigure, stopwatch::us_per_call};

/// The usual `max_entries`.
const PREFIXES: u32 = 100_000;
const BACKENDS: u32 = 8;
const CALLS: u32 = 10_000;

pub(crate) fn figures() -> Result<Vec<BoundedFigure>, Box<dyn Error>> {
    let bytes = [1, 2, BACKENDS]
        .map(bytes_per_pair)
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let view = filled(BACKENDS)?;
    let found = us_per_call(CALLS, |n| {
        let _ = black_box(view.query(&prefix(n % PREFIXES), Moment::START));
    });
    let nobody = us_per_call(CALLS, |n| {
        let _ = black_box(view.query(&prefix(PREFIXES + n), Moment::START));
    });
    let allocated = measure(|| {
        for n in 0..CALLS {
            let _ = black_box(view.query(&prefix(PREFIXES + n), Moment::START));
        }
    });
    let query = |what: &str, measured| BoundedFigure {
        contract: "CK80",
        what: format!(
            "query of a view in memory, {PREFIXES} prefixes x {BACKENDS} backends: {what}"
        ),
        measured,
        at_most: 100.0,
        unit: "us",
    };
    let mut figures = vec![query("found", found), query("nobody", nobody)];
    #[expect(clippy::cast_precision_loss, reason = "a count")]
    figures.push(BoundedFigure {
        contract: "CK80",
        what: format!("allocations of {CALLS} queries that find nobody"),
        measured: allocated.count_total as f64,
        at_most: 0.0,
        unit: "",
    });
    figures.extend(bytes);
    Ok(figures)
}

fn bytes_per_pair(backends: u32) -> Result<BoundedFigure, Box<dyn Error>> {
    let mut view = None;
    let taken = measure(|| view = Some(filled(backends)));
    drop(view.ok_or("it was filled")??);
    let pairs = f64::from(PREFIXES) * f64::from(backends);
    #[expect(clippy::cast_precision_loss, reason = "bytes")]
    let measured = taken.bytes_current as f64 / pairs;
    let what = format!("bytes per pair of prefix and backend, {PREFIXES} prefixes x {backends}");
    Ok(BoundedFigure {
        contract: "CK82",
        what,
        measured,
        at_most: 200.0,
        unit: "B",
    })
}

fn filled(backends: u32) -> Result<MemoryPrefixIndex, Unavailable> {
    let max_entries = NonZeroUsize::new(PREFIXES as usize).unwrap_or(NonZeroUsize::MIN);
    let view = MemoryPrefixIndex::new(ViewSettings {
        max_entries,
        ..ViewSettings::default()
    });
    let names: Vec<Arc<str>> = (0..backends)
        .map(|number| Arc::from(format!("vllm-{number}")))
        .collect();
    for number in 0..PREFIXES {
        for name in &names {
            let created = PrefixEvent {
                kind: EventKind::Created,
                prefix: prefix(number),
                token_count: Some(512),
            };
            view.record(name, &created, Moment::START)?;
        }
    }
    Ok(view)
}

/// Spread as hashes are.
fn prefix(number: u32) -> PrefixHash {
    PrefixHash::Sequence(SequenceHash(
        u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    ))
}
