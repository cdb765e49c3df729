//! `warmroute compare`: `warm` beside the rules of other routers on recorded workloads, as one table
//! and as a gate. The runs and the gate's rule are in crate `simulate`.

mod output_file;

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    str::FromStr,
    thread,
    time::Duration,
};

use clap::Args;
use engine_model::Profile;
use kv_blocks::BlockSize;
use simulate::{
    ComparedTrace, ComparisonPlan, ComparisonReport, Trace, block_size_of, compare,
    ranges::{LONGEST_TTFT_MS, MOST_WORKERS},
};

use self::output_file::ComparisonOutput;
use crate::{
    exit_code::ExitCode, output, settings::BAD_CONFIGURATION, simulate_command::ProgressLine,
    text_file,
};

/// Exit code if a file cannot be written.
const NOT_WRITTEN: u8 = 1;

/// Exit code if the gate fails.
const WORSE: u8 = 3;

/// Tokens of a block where no prompt is long enough to tell.
const USUAL_BLOCK_TOKENS: u64 = 512;

const AFTER_HELP: &str = "Exit code: 0 where warm is within its bounds on every trace; 3 where it is not; 2 for a bad flag; 78 for a trace \
that cannot be used; 1 where a file cannot be written.\n\nThe figures, the bounds and where to get the traces: docs/proof.md.";

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CompareArgs {
    /// Workloads: files of JSON lines as `simulate` reads them, plain or .zst, at most 16. The tokens that one of the hash_ids
    /// stands for are found by the lengths of the prompts.
    #[arg(value_name = "TRACE", required = true, num_args = 1..=16)]
    traces: Vec<PathBuf>,
    /// Model and hardware of the engines: 8b-h200, 70b-h100x4, 70b-h100x2, 32b-h100x2 or toy.
    #[arg(long, value_name = "NAME", default_value = "8b-h200", value_parser = Profile::from_str)]
    profile: Profile,
    /// Number of engines [default: 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_WORKERS)))]
    workers: Option<u32>,
    /// Time to a first token within which turns count [default: 2000].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=LONGEST_TTFT_MS))]
    ttft_slo_ms: Option<u64>,
    /// Search the most sessions within that time, too, for each policy and each trace that names sessions: minutes in place
    /// of one.
    #[arg(long)]
    find_sessions: bool,
    /// Another seed settles ties and draws sessions differently.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the table there, too: FILE.md, FILE.json, FILE.svg (a drawing), or a folder that gets all three as comparison.md
    /// and so on; repeat for more.
    #[arg(long, value_name = "FILE|DIR", value_parser = ComparisonOutput::from_str)]
    out: Vec<ComparisonOutput>,
    /// Print one JSON object on stdout and nothing else.
    #[arg(long)]
    json: bool,
}

/// Reason for a missing table, with its exit code.
struct CompareError {
    message: String,
    code: u8,
}

pub(crate) fn run(args: &CompareArgs) -> ExitCode {
    match compared(args).and_then(|report| print_report(args, &report)) {
        Ok(code) => code,
        Err(error) => {
            output::err(&format!("warmroute compare: {}", error.message));
            ExitCode::from(error.code)
        }
    }
}

/// Prints the table on stdout before it writes files, so that a full disk does not lose it.
fn print_report(args: &CompareArgs, report: &ComparisonReport) -> Result<ExitCode, CompareError> {
    if args.json {
        output::out(&output_file::json(report));
    } else {
        output::out(report.markdown().trim_end());
    }
    let not_written = |message| CompareError {
        message,
        code: NOT_WRITTEN,
    };
    args.out
        .iter()
        .try_for_each(|out| out.write(report))
        .map_err(not_written)?;
    Ok(result_of(report))
}

/// Returns the exit code of the gate.
fn result_of(report: &ComparisonReport) -> ExitCode {
    if report.losses.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(WORSE)
    }
}

fn compared(args: &CompareArgs) -> Result<ComparisonReport, CompareError> {
    let plan = plan(args);
    let traces = args.traces.iter().map(|path| {
        read(path, &plan).map_err(|problem| CompareError {
            message: format!("{}: {problem}", path.display()),
            code: BAD_CONFIGURATION,
        })
    });
    let traces: Vec<ComparedTrace> = traces.collect::<Result<_, _>>()?;
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut line: Option<ProgressLine> = None;
    let report = compare(&traces, &plan, threads, &mut |done, all| {
        line.get_or_insert_with(|| ProgressLine::new(all))
            .show(done);
    });
    if let Some(line) = line {
        line.clear();
    }
    Ok(report)
}

fn plan(args: &CompareArgs) -> ComparisonPlan {
    let usual = ComparisonPlan::new(args.profile);
    ComparisonPlan {
        workers: args.workers.unwrap_or(usual.workers),
        ttft_slo: args
            .ttft_slo_ms
            .map_or(usual.ttft_slo, Duration::from_millis),
        finds_sessions: args.find_sessions,
        seed: args.seed,
        ..usual
    }
}

/// Reads a trace; returns an error message if it cannot be compared.
fn read(path: &Path, plan: &ComparisonPlan) -> Result<ComparedTrace, String> {
    let text = text_file::read(path).map_err(|error| error.to_string())?;
    let size = match block_size_of(&text) {
        Some(size) => size,
        None => BlockSize::new(USUAL_BLOCK_TOKENS).map_err(|error| error.to_string())?,
    };
    let trace = Trace::read(&text, size).map_err(|error| error.to_string())?;
    plan.prepare(name_of(path), trace).ok_or_else(|| {
        format!(
            "none of its requests fits an engine whose cache holds {} tokens: try another --profile",
            plan.profile.kv_tokens
        )
    })
}

/// Returns a file's name without its folder and its endings: the same table on every machine.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let name = name.to_string_lossy();
    let name = name.strip_suffix(".zst").unwrap_or(&name);
    let name = name.strip_suffix(".csv").unwrap_or(name);
    name.strip_suffix(".jsonl").unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use simulate::{CONTENDERS, ComparedFigure, ComparedPace, GateLoss};

    use super::*;

    #[test]
    fn a_trace_is_named_by_its_file() {
        let paths = ["a/b.jsonl.zst", "b.jsonl", "b.csv.zst", "/c/b"];
        assert_eq!(paths.map(|path| name_of(Path::new(path))), ["b"; 4]);
    }

    #[test]
    fn one_loss_of_the_gate_is_another_exit_code() {
        let mut report = ComparisonReport {
            schema: ComparisonReport::SCHEMA,
            profile: "toy",
            workers: 1,
            ttft_slo_ms: 1.0,
            seed: 1,
            cells: Vec::new(),
            losses: Vec::new(),
        };
        assert_eq!(result_of(&report).number(), 0);
        report.losses.push(GateLoss {
            trace: "chat".to_owned(),
            pace: ComparedPace::Load(0.55),
            contender: CONTENDERS[0],
            figure: ComparedFigure::Turns,
            found: 1.0,
            best: 2.0,
            best_contender: CONTENDERS[2],
            loss_percent: 50.0,
            allowed_percent: 5.0,
        });
        assert_eq!(result_of(&report).number(), 3);
    }
}
