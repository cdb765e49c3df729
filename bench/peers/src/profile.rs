//! Repeats one phase for a profiler.

use std::time::{Duration, Instant};

use crate::{
    compare::pinned,
    index::{Index, with_index},
    options::{Options, ProfileTarget, ProfiledPhase},
    phases::{self, Cores, PreparedWorkload},
    samples::Samples,
    workload::{Workload, WorkloadError},
};

/// Repeats the phase until its time is over; prints a line of figures for each repetition.
pub(crate) fn profile(what: &ProfileTarget, options: &Options) -> Result<(), WorkloadError> {
    let workload = what
        .workload
        .make(options.traces.as_deref(), options.size())?;
    for contender in options.contenders() {
        println!(
            "{} {:?} {}",
            what.workload.name,
            what.phase,
            contender.name()
        );
        let time = Duration::from_secs(options.seconds);
        with_index!(contender, I => repeat::<I>(&workload, what.phase, time, options.cores()));
    }
    Ok(())
}

fn repeat<I: Index>(workload: &Workload, phase: ProfiledPhase, time: Duration, cores: Cores) {
    pinned(if phase == ProfiledPhase::WithWriter {
        &cores
    } else {
        &cores[..1]
    });
    let prepared = PreparedWorkload::<I>::new(workload);
    let standing = phases::change_rate(&prepared).1;
    let start = Instant::now();
    while start.elapsed() < time {
        match phase {
            ProfiledPhase::Events => {
                println!("{:.2} M blocks/s", phases::change_rate(&prepared).0 / 1e6)
            }
            ProfiledPhase::Query => show(standing.queries(10)),
            ProfiledPhase::Hot => show(standing.queries_of_hot_prompts(10)),
            ProfiledPhase::Pairs => show(standing.queries_as_pairs(10)),
            ProfiledPhase::Batch => println!("{:.3} M queries/s", standing.batched_rate(10) / 1e6),
            ProfiledPhase::WithWriter => show(phases::with_writer(&prepared)),
        }
    }
}

fn show(samples: Samples) {
    let [p50, p90, p99] = samples.percentiles_ns([0.5, 0.9, 0.99]);
    println!("p50 {p50:.0} ns, p90 {p90:.0} ns, p99 {p99:.0} ns");
}
