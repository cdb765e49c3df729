//! Prints what one chat allocates in the router, beside a bare relay of hyper:
//! `cargo run -p gateway --example request_allocations`. With the name of a case and of a column
//! (`whole`, `stream`, `held`), only that figure is measured, for a profiler.
//!
//! Client, engine and probes run on threads of their own; counted is what the thread of the router
//! allocates, from the client's connection to the worker's. The numbers do not depend on the machine.

mod bare_relay;
mod client;
mod counted_server;
mod engine;
mod router;

use std::{error::Error, sync::Arc, time::Duration};

use allocation_counter::AllocationInfo;

use client::{Client, ReplyKind};
use counted_server::CountedServer;
use engine::Engine;

/// Requests before the counted ones, which fill pools and tables.
const WARM_UP: u32 = 100;
/// Counted requests.
const REQUESTS: u32 = 200;
/// Events of a short and of a long stream: the difference is the cost of an event.
const SHORT: u32 = 10;
const LONG: u32 = 60;
/// Streams that wait at the same time.
const STREAMS: u32 = 200;
/// Time for the router to end its part of a request whose client has the whole reply.
const SETTLE: Duration = Duration::from_millis(100);

/// What is compared.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// The configuration beside the workers; `None`: no router, but the bare relay.
    settings: Option<&'static str>,
}

const CASES: [Case; 3] = [
    Case {
        name: "bare relay",
        settings: None,
    },
    Case {
        name: "round_robin",
        settings: Some("routing: {policy: round_robin}"),
    },
    Case {
        name: "warm",
        settings: Some("routing: {policy: warm}"),
    },
];

#[expect(clippy::print_stdout, reason = "it measures and prints, nothing else")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    if let (Some(case), Some(column)) = (arguments.next(), arguments.next()) {
        return one_figure(&case, &column);
    }
    println!(
        "{:<12} {:>22} {:>22} {:>22} {:>16}",
        "", "whole reply", "stream of 10 events", "event of a stream", "held by a stream"
    );
    for case in CASES {
        let whole = per_request(case, ReplyKind::Whole)?;
        let short = per_request(case, ReplyKind::Events(SHORT))?;
        let long = per_request(case, ReplyKind::Events(LONG))?;
        let events = f64::from(LONG - SHORT);
        println!(
            "{:<12} {} {} {} {:>14.0} B",
            case.name,
            row(whole),
            row(short),
            row([0, 1].map(|at| (long[at] - short[at]) / events)),
            held(case)?
        );
    }
    Ok(())
}

fn row([count, bytes]: [f64; 2]) -> String {
    format!("{count:>8.1} {bytes:>11.0} B")
}

#[expect(clippy::print_stdout, reason = "it measures and prints, nothing else")]
fn one_figure(case: &str, column: &str) -> Result<(), Box<dyn Error>> {
    let case = CASES.into_iter().find(|other| other.name == case);
    let case = case.ok_or("no case has this name")?;
    let figure = match column {
        "whole" => row(per_request(case, ReplyKind::Whole)?),
        "stream" => row(per_request(case, ReplyKind::Events(SHORT))?),
        "held" => format!("{:.0} B", held(case)?),
        _ => return Err("no column has this name".into()),
    };
    println!("{figure}");
    Ok(())
}

/// An engine, and a server in front of it.
struct Setup {
    engine: Arc<Engine>,
    server: CountedServer,
}

impl Setup {
    fn start(case: Case) -> Result<Self, Box<dyn Error>> {
        let engine = Engine::start()?;
        let server = match case.settings {
            Some(settings) => router::start(settings, engine.port())?,
            None => bare_relay::start(engine.port())?,
        };
        Ok(Self { engine, server })
    }
}

/// The allocations of one request, and their bytes.
fn per_request(case: Case, kind: ReplyKind) -> Result<[f64; 2], Box<dyn Error>> {
    let setup = Setup::start(case)?;
    let mut client = Client::connect(setup.server.port())?;
    let ask = |client: &mut Client, first: u32, most: u32| {
        let asked = (first..first + most).try_for_each(|n| client.ask(n, kind, &setup.engine));
        std::thread::sleep(SETTLE);
        asked
    };
    setup.server.count(|| ask(&mut client, 0, WARM_UP)).1?;
    let (counted, asked) = setup.server.count(|| ask(&mut client, WARM_UP, REQUESTS));
    asked?;
    let AllocationInfo {
        count_total,
        bytes_total,
        ..
    } = counted;
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let each = [count_total, bytes_total].map(|total| total as f64 / f64::from(REQUESTS));
    Ok(each)
}

/// The bytes that the thread of the router holds for a stream between two events.
fn held(case: Case) -> Result<f64, Box<dyn Error>> {
    let setup = Setup::start(case)?;
    let open = |from: u32, count: u32| -> std::io::Result<Vec<Client>> {
        let opened = (from..from + count)
            .map(|n| {
                let mut client = Client::connect(setup.server.port())?;
                client.begin(n, ReplyKind::Events(SHORT))?;
                Ok(client)
            })
            .collect();
        std::thread::sleep(SETTLE);
        opened
    };
    // Tables have grown to their size by then.
    let (_, first) = setup.server.count(|| open(0, STREAMS));
    let first = first?;
    let (counted, second) = setup.server.count(|| open(STREAMS, STREAMS));
    drop((first, second?));
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let each = counted.bytes_current as f64 / f64::from(STREAMS);
    Ok(each)
}
