//! The workloads: one recorded, and one of each synthetic kind.

use std::io::Read;

use engine_model::Profile;
use kv_blocks::BlockSize;
use ruzstd::decoding::StreamingDecoder;
use simulate::{Synthetic, Trace};

const RECORDED: &[u8] = include_bytes!("../../../../../tests/fixtures/traces/mixed-1000.jsonl.zst");

/// Near saturation the figures of a run depend more on its history than on the router.
const STEADY: [FleetSize; 4] = [fleet(4, 0.3), fleet(4, 0.55), fleet(8, 0.3), fleet(8, 0.55)];

/// A trace, its engines, and the name of its cells.
pub(crate) struct QualityWorkload {
    pub(crate) name: &'static str,
    pub(crate) trace: Trace,
    pub(crate) profile: Profile,
    pub(crate) cells: Vec<FleetSize>,
}

/// The number of engines, and their load.
#[derive(Clone, Copy)]
pub(crate) struct FleetSize {
    pub(crate) workers: u32,
    pub(crate) load: f64,
}

const fn fleet(workers: u32, load: f64) -> FleetSize {
    FleetSize { workers, load }
}

/// All workloads. The recorded one has too few requests to fill caches of the usual size, so these
/// are a third of it. The synthetic ones run at about their generated speed.
pub(crate) fn all() -> Vec<QualityWorkload> {
    let mut recorded = String::new();
    StreamingDecoder::new(RECORDED)
        .unwrap()
        .read_to_string(&mut recorded)
        .unwrap();
    let small = Profile {
        kv_tokens: 300_000,
        ..Profile::named("8b-h200").unwrap()
    };
    let mixed = QualityWorkload {
        name: "mixed",
        trace: Trace::read(&recorded, size()).unwrap(),
        profile: small,
        cells: STEADY.into(),
    };
    vec![
        mixed,
        synthetic(
            "chat",
            "chat?sessions=240&turns=4&think_s=20&minutes=3",
            &STEADY,
        ),
        synthetic("agents", "agents?runs=60&steps=12&minutes=3", &STEADY[..3]),
        synthetic("tenants", "tenants?requests=1000&minutes=3", &STEADY),
    ]
}

fn synthetic(name: &'static str, workload: &str, cells: &[FleetSize]) -> QualityWorkload {
    let text = workload.parse::<Synthetic>().unwrap().text(size()).unwrap();
    let trace = Trace::read(&text, size()).unwrap();
    QualityWorkload {
        name,
        trace,
        profile: Profile::named("70b-h100x2").unwrap(),
        cells: cells.into(),
    }
}

fn size() -> BlockSize {
    BlockSize::new(512).unwrap()
}
