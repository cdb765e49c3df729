//! `warmroute events`: shows an engine's messages line by line (`tap`), records them frame by frame
//! (`dump`), or publishes them on a NATS subject (`relay`).
//!
//! The command reads beside the router: it routes nothing and stores nothing, and the publisher
//! does not notice it.

mod feed;
mod recording;
#[cfg(feature = "nats")]
mod relay;
mod tap;

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::PathBuf,
};

use clap::{Args, Subcommand, ValueEnum};
use zmtp::Endpoint;

use crate::{exit_code::ExitCode, output};

#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    #[command(subcommand)]
    command: EventsCommand,
}

#[derive(Debug, Subcommand)]
enum EventsCommand {
    /// Print a line for each batch: when, its number, its topic, and what it says per kind of event and medium.
    Tap(TapArgs),
    /// Record every frame as JSON lines that can be played back. A recording holds the token ids of prompts.
    Dump(DumpArgs),
    /// Put every message on a NATS subject, for routers that cannot reach the engine's ports. Replays go there too.
    #[cfg(feature = "nats")]
    Relay(relay::RelayArgs),
}

/// Who publishes.
#[derive(Args, Debug)]
struct PublisherArgs {
    /// The publisher's socket, such as tcp://10.0.0.5:5557 or ipc:///run/engine.sock.
    #[arg(long, value_name = "ENDPOINT")]
    endpoint: Endpoint,
    /// The publisher's replay socket: what it still keeps of its history comes first.
    #[arg(long, value_name = "ENDPOINT")]
    replay: Option<Endpoint>,
    /// Only topics that start with this.
    #[arg(long, value_name = "TOPIC", default_value = "")]
    topic: String,
    /// Bind the endpoint and let publishers connect.
    #[arg(long)]
    bind: bool,
}

/// Where events come from, and how many of them are wanted.
#[derive(Args, Debug)]
struct SourceArgs {
    #[command(flatten)]
    publisher: PublisherArgs,
    /// End after so many batches [default: never].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

#[derive(Args, Debug)]
struct TapArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// What the payloads are.
    #[arg(long, value_enum, default_value_t = PayloadFormat::Vllm)]
    format: PayloadFormat,
    /// Print one JSON object per batch.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct DumpArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// File to write into, which must not exist yet [default: stdout].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// What the engine is called in the recording.
    #[arg(long, value_name = "NAME", default_value = "engine")]
    engine: String,
}

/// What payloads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PayloadFormat {
    /// vLLM's batches, and those of SGLang and others like it.
    Vllm,
    /// The Mooncake store's master.
    Mooncake,
}

/// Reason why the command ended.
#[derive(Debug)]
enum CommandEnd {
    /// All requested batches came, or the reader of the output went away.
    Done,
    /// A signal.
    Stopped(crate::signals::StopSignal),
}

pub(crate) fn run(args: &EventsArgs) -> ExitCode {
    let ended = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .and_then(|runtime| {
            runtime.block_on(async {
                match &args.command {
                    EventsCommand::Tap(args) => {
                        let mut tap = tap::Tap::new(io::stdout(), args.format, args.json);
                        feed::follow(&args.source, &mut tap).await
                    }
                    EventsCommand::Dump(args) => {
                        let mut recorder =
                            recording::Recorder::new(open(args.out.as_ref())?, &args.engine);
                        feed::follow(&args.source, &mut recorder).await
                    }
                    #[cfg(feature = "nats")]
                    EventsCommand::Relay(args) => relay::run(args).await,
                }
            })
        });
    match ended {
        Ok(CommandEnd::Done) => ExitCode::SUCCESS,
        Ok(CommandEnd::Stopped(stop)) => ExitCode::from(stop.exit_code()),
        // The reader of the output has closed it.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            output::err(&format!("warmroute events: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Opens the output; a recording never overwrites an existing file.
fn open(path: Option<&PathBuf>) -> io::Result<Box<dyn Write>> {
    let Some(path) = path else {
        return Ok(Box::new(io::stdout()));
    };
    let failure = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!(
                "{} cannot be created ({error}): name a new file",
                path.display()
            ),
        )
    };
    Ok(Box::new(BufWriter::new(
        File::create_new(path).map_err(failure)?,
    )))
}
