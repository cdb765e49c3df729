//! `warmroute engine`.

use engine_sim::{EngineConfig, EngineError, RunningEngine};
use serde_json::json;

use crate::{cli::EngineArgs, exit_code::ExitCode, output, signals::StopSignals};

/// Runs one engine until a signal.
pub(crate) fn run(args: EngineArgs) -> ExitCode {
    let config = match EngineConfig::try_from(args.engine) {
        Ok(config) => config,
        Err(error) => {
            output::err(&format!("warmroute engine: {error}"));
            return ExitCode::from(2);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            output::err(&format!(
                "warmroute engine: the runtime could not be started: {error}"
            ));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(until_signal(config, args.print_ready)) {
        Ok(code) => code,
        Err(error) => {
            output::err(&format!("warmroute engine: {error}"));
            ExitCode::FAILURE
        }
    }
}

async fn until_signal(config: EngineConfig, print_ready: bool) -> Result<ExitCode, EngineError> {
    let stops = StopSignals::catch();
    let engine = engine_sim::start(config).await?;
    announce(&engine, print_ready);
    if let Ok(mut stops) = stops {
        stops.next().await;
    } else {
        std::future::pending::<()>().await;
    }
    engine.stop().await;
    Ok(ExitCode::SUCCESS)
}

fn announce(engine: &RunningEngine, print_ready: bool) {
    if !print_ready {
        let events = engine.events.first().map_or("none", String::as_str);
        output::err(&format!(
            "simulated engine at {}, KV events at {events}",
            engine.http_addr
        ));
        return;
    }
    let line = json!({
        "event": "listening",
        "role": "engine",
        "data": engine.http_addr,
        "admin": null,
        "pid": std::process::id(),
        "kv_events": engine.events,
        "replay": engine.replay,
    });
    output::announce(&line.to_string());
}
