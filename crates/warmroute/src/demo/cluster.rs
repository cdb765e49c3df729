//! The demo's engines and its router.

use std::sync::Arc;

use admin::Tokens;
use anyhow::Context;
use clap::{Args, FromArgMatches};
use config::Override;
use engine_sim::{EngineArgs, EngineConfig, RunningEngine};
use net::ListenAddr;
use routing::Policy;

use crate::{
    live::SourceTexts,
    settings,
    wire_up::{self, ProcessOwner, RunningRouter, StartOptions},
};

/// Model that the engines serve.
pub(crate) const MODEL: &str = "sim";
/// Tokens per block.
pub(crate) const BLOCK_SIZE: u32 = 16;
/// Blocks per engine: enough for its share of the chats, far too few for all of them.
const KV_BLOCKS: u32 = 1280;

/// Engines with a router in front. Dropping it ends them with the runtime.
pub(crate) struct DemoCluster {
    engines: Vec<RunningEngine>,
    pub(crate) router: RunningRouter,
    /// The router's data listener.
    pub(crate) data: ListenAddr,
    /// Its admin listener.
    pub(crate) admin: ListenAddr,
}

impl DemoCluster {
    /// Starts everything on free ports and waits until the router has seen every engine.
    pub(crate) async fn start(workers: u32, seed: u64, policy: Policy) -> anyhow::Result<Self> {
        let mut engines = Vec::new();
        for _ in 0..workers {
            let engine = engine_sim::start(engine(seed)?)
                .await
                .context("a simulated engine did not start")?;
            engines.push(engine);
        }
        let mut overrides: Vec<Override> = engines
            .iter()
            .enumerate()
            .map(|(n, engine)| {
                set(
                    "workers",
                    &format!("engine-{n}=http://{}", engine.http_addr),
                )
            })
            .collect();
        overrides.push(set("server.listen", "127.0.0.1:0"));
        overrides.push(set("admin.listen", "127.0.0.1:0"));
        overrides.push(set("routing.policy", policy.as_str()));
        // The demo ignores the environment, which configures real routers: it runs the same
        // everywhere.
        let settings = settings::load(None, Vec::new(), &overrides).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("{}", lines.join("; "))
        })?;
        let extras = StartOptions {
            tenants: Arc::default(),
            admin_tokens: Tokens::default(),
            on_verdict: Arc::new(|_| {}),
            takeover: false,
            key_in_arguments: false,
            owner: ProcessOwner::Router,
        };
        let router = wire_up::start(settings, SourceTexts::default(), extras).await?;
        router.fleet.first_verdicts().await;
        let ready = router.fleet.snapshot().ready();
        anyhow::ensure!(
            ready == engines.len(),
            "{ready} of {} engines are ready",
            engines.len()
        );
        let addresses = &router.addresses;
        let listening = addresses.data.clone().zip(addresses.admin.clone());
        let (data, admin) = listening.context("the router does not listen")?;
        Ok(Self {
            engines,
            router,
            data,
            admin,
        })
    }

    /// Stops everything and waits for its end.
    pub(crate) async fn stop(self) {
        self.router.stop().await;
        for engine in self.engines {
            engine.stop().await;
        }
    }
}

fn set(path: &str, value: &str) -> Override {
    Override {
        path: path.to_owned(),
        value: value.to_owned(),
        flag: "demo".to_owned(),
    }
}

/// Returns an engine of the default profile with a small cache and its own ports.
fn engine(seed: u64) -> anyhow::Result<EngineConfig> {
    let flags = [
        "engine",
        "--port=0",
        "--kv-events=tcp://127.0.0.1:0",
        "--replay=tcp://127.0.0.1:0",
        &format!("--model={MODEL}"),
        &format!("--block-size={BLOCK_SIZE}"),
        &format!("--kv-blocks={KV_BLOCKS}"),
        &format!("--seed={seed}"),
    ]
    .map(str::to_owned);
    let matches =
        EngineArgs::augment_args(clap::Command::new("engine")).try_get_matches_from(flags)?;
    Ok(EngineConfig::try_from(EngineArgs::from_arg_matches(
        &matches,
    )?)?)
}
