//! An engine with OpenAI's API that costs next to nothing: one thread, hand-written HTTP/1.1, replies built in advance.
//!
//! `GET /control?delay_us=N` sets the time between two tokens on all ports and answers the requests since the last such
//! call, by port. The program ends by itself after `--lifetime-s`.

mod connection;
mod replies;
mod request;

use std::{cell::Cell, process::ExitCode, rc::Rc, time::Duration};

use anyhow::{Context as _, Result};
use clap::Parser;
use tokio::{net::TcpListener, sync::Semaphore, task::LocalSet};

// Open connections of all ports; the next one waits until one is closed.
const MAX_CONNECTIONS: usize = 20_000;

#[derive(Debug, Parser)]
struct Options {
    /// Ports on 127.0.0.1, each of which is an engine to its clients.
    #[arg(long, value_delimiter = ',', required = true)]
    ports: Vec<u16>,
    /// Time between two tokens, microseconds.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=MAX_DELAY_US))]
    delay_us: u64,
    /// Ends the program after this time, seconds.
    #[arg(long, default_value_t = 1800)]
    lifetime_s: u64,
}

const MAX_DELAY_US: u64 = 10_000_000;

/// What the connections of all ports share.
#[derive(Debug)]
pub(crate) struct EngineState {
    pub(crate) delay_us: Cell<u64>,
    /// Completions by port.
    pub(crate) requests: Vec<Cell<u64>>,
    connections: Semaphore,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fake-engine: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(31)
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let state = Rc::new(EngineState {
            delay_us: Cell::new(options.delay_us),
            requests: vec![Cell::new(0); options.ports.len()],
            connections: Semaphore::new(MAX_CONNECTIONS),
        });
        for (index, &port) in options.ports.iter().enumerate() {
            let listener = TcpListener::bind(("127.0.0.1", port))
                .await
                .with_context(|| format!("cannot listen on 127.0.0.1:{port}"))?;
            tokio::task::spawn_local(accept(listener, Rc::clone(&state), index));
        }
        tokio::time::sleep(Duration::from_secs(options.lifetime_s)).await;
        Ok(())
    })
}

async fn accept(listener: TcpListener, state: Rc<EngineState>, index: usize) {
    loop {
        // The semaphore is never closed.
        let Ok(permit) = state.connections.acquire().await else {
            return;
        };
        permit.forget();
        let Ok((stream, _)) = listener.accept().await else {
            // Most likely there are no more file descriptors.
            state.connections.add_permits(1);
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let state = Rc::clone(&state);
        tokio::task::spawn_local(async move {
            // A connection that its client broke is of no interest: the load generator counts it.
            let _ = connection::serve(stream, &state, index).await;
            state.connections.add_permits(1);
        });
    }
}
