//! Plays made-up workloads without sessions, with soft and with hard ones, and prints mean time to first token and hits.
//!
//! ```sh
//! cargo run --release -p simulate --example sessions -- warm chat agents
//! ```
#![allow(clippy::print_stdout, reason = "it is there to print")]

use std::{error::Error, time::Duration};

use engine_model::Profile;
use kv_blocks::BlockSize;
use routing::{Policy, RoutingSection, RoutingSettings, SessionMode, SessionSection};
use simulate::{Cell, Synthetic, Trace, TracePace, run};

const WORKERS: u32 = 8;
const MODES: [SessionMode; 3] = [SessionMode::Off, SessionMode::Soft, SessionMode::Hard];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let policy: Policy = args
        .next()
        .ok_or("name a policy and workloads such as chat or agents?runs=50")?
        .parse()?;
    let profile = Profile::named("8b-h200").ok_or("the profile is gone")?;
    let size = BlockSize::new(512)?;
    println!("workload load events | mean TTFT in ms: off soft hard | hits: off soft hard");
    for kind in args {
        let mut trace = Trace::read(&kind.parse::<Synthetic>()?.text_with_sessions(size)?, size)?;
        trace.drop_what_exceeds(&profile);
        for load in [0.3, 0.55] {
            for (events, delay_ms, loss) in
                [("all", 20, 0.0), ("late", 2_000, 0.0), ("lost", 20, 0.1)]
            {
                let reports = MODES.map(|session| {
                    let routing = RoutingSettings {
                        policy,
                        section: RoutingSection {
                            session: SessionSection {
                                mode: session,
                                ..SessionSection::default()
                            },
                            ..RoutingSection::default()
                        },
                        ..RoutingSettings::default()
                    };
                    let pace = TracePace::for_load(&trace, &profile, WORKERS, load);
                    let cell = Cell {
                        sessions: true,
                        event_delay: Duration::from_millis(delay_ms),
                        event_loss: loss,
                        ..Cell::new(routing, WORKERS, pace, profile)
                    };
                    run(&trace, &cell)
                });
                let ttft = reports
                    .each_ref()
                    .map(|report| format!("{:.1}", report.ttft_ms.mean))
                    .join(" ");
                let hits = reports
                    .each_ref()
                    .map(|report| format!("{:.4}", report.block_hit_ratio))
                    .join(" ");
                println!("{kind} {load} {events} | {ttft} | {hits}");
            }
        }
    }
    Ok(())
}
