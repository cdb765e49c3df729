//! Load generator for routers: one thread, connections that are kept, each run bounded in time.
//!
//! - `closed`: each connection sends its next request when the reply before it has ended;
//! - `open`: each connection has a schedule, and a late request is timed from the moment when it was due;
//! - `paced`: each connection reads one stream, and the connections begin one after the other.
//!
//! Prints one JSON object; times are in microseconds.

mod connection;
mod exchange;
mod prompts;
mod statistics;

use std::{cell::RefCell, process::ExitCode, rc::Rc, time::Duration};

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};
use tokio::{
    task::LocalSet,
    time::{Instant, sleep},
};

use connection::{Connection, Schedule};
use prompts::{LARGEST_PROMPT, PromptText, SMALLEST_PROMPT};
use statistics::Statistics;

/// How long a reply may still take when the time of a run is over.
const GRACE: Duration = Duration::from_secs(3);

#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Each request follows the reply before it at once.
    Closed {
        #[command(flatten)]
        load: LoadOptions,
    },
    /// At a fixed rate.
    Open {
        #[command(flatten)]
        load: LoadOptions,
        /// Requests per second of all connections together.
        #[arg(long)]
        rate: u32,
    },
    /// One stream for each connection.
    Paced {
        #[command(flatten)]
        load: LoadOptions,
        /// Time in which all connections begin.
        #[arg(long)]
        ramp_ms: u32,
    },
}

#[derive(Args, Clone, Debug)]
struct LoadOptions {
    /// Port on 127.0.0.1.
    #[arg(long)]
    port: u16,
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Bytes of a prompt; 0: one short sentence.
    #[arg(long, default_value_t = 0)]
    prompt: usize,
    /// Asks for a stream.
    #[arg(long)]
    stream: bool,
    /// Tokens of a reply.
    #[arg(long, default_value_t = 1)]
    tokens: u64,
}

/// What all connections of a run share.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) port: u16,
    pub(crate) prompt: usize,
    pub(crate) streamed: bool,
    /// Whether the times between two reads of a reply count.
    pub(crate) gaps: bool,
    pub(crate) tokens: u64,
    pub(crate) text: PromptText,
    pub(crate) statistics: RefCell<Statistics>,
}

fn main() -> ExitCode {
    match run(Options::parse().mode) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mode: Mode) -> Result<()> {
    let (options, paced) = match &mode {
        Mode::Closed { load } | Mode::Open { load, .. } => (load, false),
        Mode::Paced { load, .. } => (load, true),
    };
    ensure!(
        options.prompt == 0 || (SMALLEST_PROMPT..=LARGEST_PROMPT).contains(&options.prompt),
        "--prompt is {}: give 0 or {SMALLEST_PROMPT} to {LARGEST_PROMPT} bytes",
        options.prompt
    );
    let load = Rc::new(Load {
        port: options.port,
        prompt: options.prompt,
        streamed: options.stream || paced,
        gaps: paced,
        tokens: options.tokens,
        text: PromptText::generate(),
        statistics: RefCell::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let elapsed = LocalSet::new().block_on(&runtime, run_connections(&mode, options, &load));
    let report = load.statistics.borrow_mut().report(elapsed);
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Returns how long the run took.
async fn run_connections(mode: &Mode, options: &LoadOptions, load: &Rc<Load>) -> Duration {
    let start = Instant::now();
    let end = start + Duration::from_secs(options.seconds);
    let connections = f64::from(options.connections);
    let mut tasks = Vec::with_capacity(options.connections as usize);
    for number in 0..options.connections {
        let mut connection = Connection::new(Rc::clone(load), number);
        let own = f64::from(number);
        tasks.push(match *mode {
            Mode::Closed { .. } => tokio::task::spawn_local(async move {
                connection.repeat(Schedule::closed(end), end + GRACE).await;
            }),
            Mode::Open { rate, .. } => {
                let rate = f64::from(rate.max(1));
                let first = start + Duration::from_millis(5) + Duration::from_secs_f64(own / rate);
                let step = Duration::from_secs_f64(connections / rate);
                tokio::task::spawn_local(async move {
                    let schedule = Schedule::open(first, step, end);
                    connection.repeat(schedule, end + GRACE).await;
                })
            }
            Mode::Paced { ramp_ms, .. } => {
                let wait = Duration::from_millis(ramp_ms.into()).mul_f64(own / connections);
                tokio::task::spawn_local(async move {
                    sleep(wait).await;
                    connection.once(end).await;
                })
            }
        });
    }
    for task in tasks {
        // A task that panicked has printed why.
        let _ = task.await;
    }
    start.elapsed()
}
