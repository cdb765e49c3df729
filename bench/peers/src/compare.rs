//! Runs every index with every workload.

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

/// In a measuring run one of this many queries is checked.
const CHECKED_EVERY: usize = 61;
/// Number of measured passes over all queries, after a warm-up pass.
const MEASURED_PASSES: usize = 3;

/// A run without figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompareError {
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A wrong index is not measured.
    #[error("{workload}: {index} answered wrongly at {mismatch}")]
    Wrong {
        workload: &'static str,
        index: &'static str,
        mismatch: Mismatch,
    },
    /// The process that measures memory printed no result.
    #[error("{workload}: the process that measures the memory of {index} {what}")]
    Memory {
        workload: &'static str,
        index: &'static str,
        what: String,
    },
}

/// Measures all selected indexes and workloads.
pub(crate) fn compare(options: &Options) -> Result<BenchmarkResults, CompareError> {
    // Before this process is pinned to one core and counts only that one.
    let run = RunEnvironment::this(options.reps(), options.quick);
    let contenders = options.contenders();
    let mut workloads = vec![];
    for recipe in available(options) {
        let workload = made(&recipe, options)?;
        check(&recipe, &workload, &contenders, CHECKED_EVERY)?;
        let mut figures = WorkloadFigures::new(recipe.name);
        // Repetitions alternate between indexes, so that noise of the machine affects all of them.
        for _ in 0..options.reps() {
            for contender in &contenders {
                let repetition =
                    with_index!(contender, I => measure::<I>(&workload, options.cores()));
                figures.add(*contender, repetition);
            }
        }
        // The child processes create the workload again, and need the memory.
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

/// Compares every answer of every query with the oracle's.
pub(crate) fn check_all(options: &Options) -> Result<(), CompareError> {
    for recipe in available(options) {
        let workload = made(&recipe, options)?;
        check(&recipe, &workload, &options.contenders(), 1)?;
    }
    Ok(())
}

/// Returns the workloads that can run: without traces, those that need one are skipped, unless they
/// are named.
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

/// Figures from threads that are not pinned are less precise, not wrong: so this is a warning, not
/// an error.
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

/// On Linux this path reaches the running program even if its file was rebuilt meanwhile.
fn this_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        Ok("/proc/self/exe".into())
    } else {
        std::env::current_exe()
    }
}
