//! Measures what streamed replies cost in a proxy: its CPU time per event, its memory per stream,
//! and how late events arrive, beside a connection straight to the engine.
//!
//! See `README.md` for the command line. Everything runs on this machine, over loopback.

mod client;
mod engine;
mod figures;
mod proxy;

use std::{env, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};

/// The load: how many streams run at once, and what each of them carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) streams: usize,
    /// Between two events; zero: as fast as the reader takes them.
    pub(crate) interval: Duration,
    pub(crate) events: u32,
    /// Of each request's prompt, about.
    pub(crate) prompt_bytes: usize,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stream-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let mut number = |name: &str| -> Result<u64> {
        let value = arguments
            .next()
            .with_context(|| format!("{name} is missing"))?;
        value
            .parse()
            .with_context(|| format!("{name} is {value}: give a number"))
    };
    let load = Load {
        streams: usize::try_from(number("STREAMS")?)?,
        interval: Duration::from_millis(number("INTERVAL_MS")?),
        events: u32::try_from(number("EVENTS")?)?,
        prompt_bytes: usize::try_from(number("PROMPT_BYTES")?)?,
    };
    let targets: Vec<_> = arguments.collect();
    if load.streams == 0 || load.events < 2 {
        bail!("there is nothing to measure: give at least 1 stream and 2 events");
    }
    println!(
        "{} streams of {} events, {} ms apart, prompts of {} bytes\n",
        load.streams,
        load.events,
        load.interval.as_millis(),
        load.prompt_bytes
    );
    println!("{}", figures::HEADER);
    let engine = engine::start(load)?;
    println!(
        "{}",
        figures::row("direct", &client::run(engine, load)?, None)
    );
    for target in &targets {
        let (name, command) = target
            .split_once('=')
            .with_context(|| format!("{target}: give NAME=COMMAND"))?;
        let mut proxy = proxy::Proxy::start(command, engine)?;
        let before = proxy.usage()?;
        let samples = client::run(proxy.port, load)?;
        let usage = proxy.usage()?.since(&before);
        println!("{}", figures::row(name, &samples, Some(&usage)));
    }
    Ok(())
}
