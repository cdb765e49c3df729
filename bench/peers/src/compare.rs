//! Every index through every workload.

use std::{io, path::PathBuf, process::Command, time::Instant};

use crate::{
    clock,
    figures::{Metric, Repetition, WorkloadFigures},
    index::{Implementation, Index, with_index},
    machine::RunEnvironment,
    options::Options,
    oracle,
    phases::{self, Cores, Memory, Mismatch, PreparedWorkload},
    report::BenchmarkResults,
    workload::{Recipe, Workload, WorkloadError},
};

/// Of so many queries one is checked in a run that measures.
const CHECKED_EVERY: usize = 61;
/// Passes over all queries that are measured, after one that warms up.
const MEASURED_PASSES: usize = 3;

/// A run that gives no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompareError {
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// An index that is wrong is not worth measuring.
    #[error("{workload}: {index} answered wrongly at {mismatch}")]
    Wrong {
        workload: &'static str,
        index: &'static str,
        mismatch: Mismatch,
    },
    /// The process that measures memory gave nothing to read.
    #[error("{workload}: the process that measures the memory of {index} {what}")]
    Memory {
        workload: &'static str,
        index: &'static str,
        what: String,
    },
}

/// Measures everything that was asked for.
pub(crate) fn compare(options: &Options) -> Result<BenchmarkResults, CompareError> {
    // Before this process is kept to one core and counts only that.
    let run = RunEnvironment::this(options.reps(), options.quick);
    let contenders = options.contenders();
    let mut workloads = vec![];
    for recipe in available(options) {
        let workload = made(&recipe, options)?;
        check(&recipe, &workload, &contenders, CHECKED_EVERY)?;
        let mut figures = WorkloadFigures::new(recipe.name);
        // Repetitions take turns, so that a noisy spell of the machine hits every index.
        for _ in 0..options.reps() {
            for contender in &contenders {
                let repetition =
                    with_index!(contender, I => measure::<I>(&workload, options.cores()));
                figures.add(*contender, repetition);
            }
        }
        // The children make the workload again, and need the room.
        drop(workload);
        for contender in &contenders {
            figures.add_memory(*contender, memory_of(&recipe, *contender, options)?);
        }
        workloads.push(figures);
    }
    Ok(BenchmarkResults {
        run,
        contenders,
        workloads,
    })
}

/// Holds every answer of every query against the oracle.
pub(crate) fn check_all(options: &Options) -> Result<(), CompareError> {
    for recipe in available(options) {
        let workload = made(&recipe, options)?;
        check(&recipe, &workload, &options.contenders(), 1)?;
    }
    Ok(())
}

/// What can be run: without traces, what needs one is left out, unless it was named.
fn available(options: &Options) -> Vec<Recipe> {
    let mut recipes = options.workloads();
    recipes.retain(|recipe| {
        let runs = options.traces.is_some() || !recipe.needs_trace() || options.names(recipe);
        if !runs {
            eprintln!(
                "{}: left out, it replays a trace: give its folder with --traces DIR",
                recipe.name
            );
        }
        runs
    });
    recipes
}

fn made(recipe: &Recipe, options: &Options) -> Result<Workload, WorkloadError> {
    let start = Instant::now();
    let workload = recipe.make(options.traces.as_deref(), options.size())?;
    eprintln!(
        "{}: {} targets, {} steps ({} before measuring), {} memberships of {} blocks at the end; made in {:.1} s",
        recipe.name,
        workload.targets,
        workload.steps.len(),
        workload.warm,
        workload.memberships,
        workload.distinct,
        start.elapsed().as_secs_f64()
    );
    Ok(workload)
}

fn check(
    recipe: &Recipe,
    workload: &Workload,
    contenders: &[Implementation],
    every: usize,
) -> Result<(), CompareError> {
    let expected = oracle::answers(workload, every);
    for contender in contenders {
        let index = contender.name();
        let compared = with_index!(contender, I => phases::check::<I>(workload, &expected))
            .map_err(|mismatch| CompareError::Wrong {
                workload: recipe.name,
                index,
                mismatch,
            })?;
        eprintln!(
            "{}: {index} gave the oracle's answer to all {compared} queries compared",
            recipe.name
        );
    }
    Ok(())
}

fn measure<I: Index>(workload: &Workload, cores: Cores) -> Repetition {
    pinned(&cores[..1]);
    let prepared = PreparedWorkload::<I>::new(workload);
    let (blocks_per_s, standing) = phases::change_rate(&prepared);
    standing.queries(1);
    let [p50, p99] = standing
        .queries(MEASURED_PASSES)
        .percentiles_ns([0.5, 0.99]);
    let [hot_p50] = standing
        .queries_of_hot_prompts(MEASURED_PASSES)
        .percentiles_ns([0.5]);
    let [pairs_p50] = standing
        .queries_as_pairs(MEASURED_PASSES)
        .percentiles_ns([0.5]);
    let batched = standing.batched_rate(MEASURED_PASSES);
    drop(standing);
    pinned(&cores);
    let [writer_p50, writer_p99] = phases::with_writer(&prepared).percentiles_ns([0.5, 0.99]);
    vec![
        (Metric::QueryP50, p50),
        (Metric::QueryP99, p99),
        (Metric::QueryP50HotPrompt, hot_p50),
        (Metric::QueryP50AsPairs, pairs_p50),
        (Metric::BatchedQueries, batched),
        (Metric::EventsBlocks, blocks_per_s),
        (Metric::QueryP50WithWriter, writer_p50),
        (Metric::QueryP99WithWriter, writer_p99),
    ]
}

/// Figures from cores that move about are worse, not wrong: so this is a word, not an error.
pub(crate) fn pinned(cores: &[usize]) {
    if let Err(error) = clock::pin(cores) {
        eprintln!("cannot keep to cores {cores:?} ({error}): choose others with --cores A,B");
    }
}

fn memory_of(
    recipe: &Recipe,
    contender: Implementation,
    options: &Options,
) -> Result<Memory, CompareError> {
    let wrong = |what| CompareError::Memory {
        workload: recipe.name,
        index: contender.name(),
        what,
    };
    let mut child =
        Command::new(this_program().map_err(|error| wrong(format!("is not known: {error}")))?);
    child.args(["--memory-of", recipe.name, "--index", contender.name()]);
    if let Some(traces) = &options.traces {
        child.arg("--traces").arg(traces);
    }
    if options.quick {
        child.arg("--quick");
    }
    let output = child
        .output()
        .map_err(|error| wrong(format!("did not start: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(wrong(format!(
            "ended with {}: {}",
            output.status,
            said.trim()
        )));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| wrong(format!("printed something else: {error}")))
}

/// Linux finds the program that runs even when its file was built anew meanwhile.
fn this_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        Ok("/proc/self/exe".into())
    } else {
        std::env::current_exe()
    }
}
