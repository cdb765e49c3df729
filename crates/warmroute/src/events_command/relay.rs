//! `warmroute events relay`: flags in, one line on stderr per change, until a signal.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;
use event_sources::{
    NatsCredentials, NatsEndpoint, NatsRelay, NatsServer, NatsSubject, RelayCounts, RelaySpec,
};
use net::Clock;

use super::{CommandEnd, PublisherArgs};
use crate::{output, signals::StopSignals};

/// Longest credentials, bytes.
const CREDENTIALS: u64 = 64 << 10;

#[derive(Args, Debug)]
pub(super) struct RelayArgs {
    #[command(flatten)]
    publisher: PublisherArgs,
    /// The NATS server, such as nats://bus:4222, or tls://bus:4222 to have the connection encrypted.
    #[arg(long, value_name = "URL")]
    nats: NatsServer,
    /// The subject to publish on, such as kv.engine-0. Replays are asked for on SUBJECT.replay. No other relay may publish
    /// there.
    #[arg(long, value_name = "SUBJECT")]
    subject: NatsSubject,
    /// File with what the server wants to see: a .creds file, or a bare token.
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
}

pub(super) async fn run(args: &RelayArgs) -> io::Result<CommandEnd> {
    let mut stops = StopSignals::catch()?;
    let PublisherArgs {
        endpoint,
        replay,
        topic,
        bind,
    } = &args.publisher;
    let spec = RelaySpec {
        endpoint: endpoint.clone(),
        replay_endpoint: replay.clone(),
        topic: topic.clone(),
        bind: *bind,
        to: NatsEndpoint::new(args.nats.clone(), args.subject.clone()),
        credentials: args.credentials.as_deref().map(credentials).transpose()?,
        trust: None,
    };
    let relay = NatsRelay::new(spec, Clock::system(), |notice| {
        output::err(&format!("warmroute events: {notice}"))
    });
    let (stop, counts) = relay
        .run(stops.next())
        .await
        .map_err(|error| io::Error::other(error.to_string()))?;
    let RelayCounts {
        published,
        dropped,
        too_large,
        not_relayable,
    } = counts;
    output::err(&format!(
        "warmroute events: {published} messages relayed; let go: {dropped} while nats was away or slow, {too_large} above its \
         limit, {not_relayable} not relayable"
    ));
    Ok(CommandEnd::Stopped(stop))
}

fn credentials(path: &Path) -> io::Result<NatsCredentials> {
    let failure = |reason: &dyn std::fmt::Display| {
        io::Error::other(format!("credentials file {}: {reason}", path.display()))
    };
    let mut text = String::new();
    // One byte above the limit, so that a longer file is detected.
    let read =
        File::open(path).and_then(|file| file.take(CREDENTIALS + 1).read_to_string(&mut text));
    read.map_err(|error| failure(&error))?;
    text.parse().map_err(|error| failure(&error))
}
