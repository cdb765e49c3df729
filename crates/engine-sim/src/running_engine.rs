//! Starts and stops an engine.

use std::sync::Arc;

use engine_model::{Allocation, Engine, EngineSettings};
use net::{Address, Clock, ListenAddr};
use tokio::task::JoinHandle;

use crate::{
    EngineConfig, EngineError,
    http::{ResponseStore, serve},
    publisher::RankPublisher,
    rank::SimRank,
    server_state::{RequestCounts, ServerState},
    tokenizer::SimTokenizer,
    wire::WireFormat,
};

/// A started engine. Dropping it without [`RunningEngine::stop`] ends it without a wait.
#[derive(Debug)]
pub struct RunningEngine {
    /// The HTTP address: `host:port`, or `unix:/path`.
    pub http_addr: String,
    /// The event endpoint of each rank; empty without events.
    pub events: Vec<String>,
    /// The replay endpoint of each rank; empty without events or replay.
    pub replay: Vec<String>,
    state: Arc<ServerState>,
    tasks: Vec<JoinHandle<()>>,
}

/// Starts an engine: binds every socket, then returns. Must be called on a tokio runtime.
pub async fn start(config: EngineConfig) -> Result<RunningEngine, EngineError> {
    let clock = Clock::system();
    let tokenizer = SimTokenizer::load(
        config.tokenizer.folder.as_deref(),
        config.tokenizer.chat_template.as_deref(),
    )?;
    let listener = net::listen(&config.listen).await?;
    let http_addr = shown(&listener.address());
    let mut ranks = Vec::new();
    for number in 0..config.dp_size {
        ranks.push(Arc::new(rank(&config, &tokenizer, number, clock).await?));
    }
    let endpoints = |of: fn(&RankPublisher) -> Option<&zmtp::Endpoint>| -> Vec<String> {
        let publishers = ranks.iter().filter_map(|rank| rank.publisher.as_ref());
        publishers.filter_map(of).map(ToString::to_string).collect()
    };
    let (events, replay) = (
        endpoints(|one| Some(&one.events)),
        endpoints(|one| one.replay.as_ref()),
    );
    let state = Arc::new(ServerState {
        tokenizer,
        ranks,
        fault: crate::fault::FaultSlot::default(),
        counts: RequestCounts::default(),
        responses: ResponseStore::default(),
        ready_at: clock.now() + config.startup_delay,
        started_unix_s: clock.unix_s(),
        clock,
        config,
    });
    let mut tasks: Vec<_> = state
        .ranks
        .iter()
        .map(|rank| runtime::spawn(Arc::clone(rank).drive()))
        .collect();
    tasks.push(runtime::spawn(serve(listener, Arc::clone(&state))));
    tracing::info!(http = %http_addr, role = ?state.config.role, "simulated engine is up");
    Ok(RunningEngine {
        http_addr,
        events,
        replay,
        state,
        tasks,
    })
}

async fn rank(
    config: &EngineConfig,
    tokenizer: &SimTokenizer,
    number: u32,
    clock: Clock,
) -> Result<SimRank, EngineError> {
    let publisher = match &config.events {
        None => None,
        Some(settings) => {
            let wire = WireFormat::new(
                settings.event_format,
                settings.hash_format,
                config.cache.block_size.tokens(),
                config.loras.clone(),
            );
            Some(RankPublisher::bind(settings, number, wire, clock).await?)
        }
    };
    let engine = Engine::new(EngineSettings {
        block_size: config.cache.block_size,
        device_blocks: config.cache.kv_blocks,
        host_blocks: config.cache.host_blocks,
        prefix_caching: config.cache.prefix_caching,
        max_num_seqs: config.batch.max_num_seqs,
        max_num_batched_tokens: config.batch.max_num_batched_tokens,
        allocation: Allocation::Growing,
        scheduling: config.batch.scheduling,
        timing: config.batch.timing,
        seed: config.seed,
        alphabet: Arc::clone(&tokenizer.alphabet),
    });
    Ok(SimRank::new(engine, publisher, clock))
}

fn shown(address: &ListenAddr) -> String {
    match address.address() {
        Address::Unix(path) => format!("unix:{}", path.display()),
        Address::Tcp { .. } => address.to_string(),
    }
}

impl RunningEngine {
    /// Cuts every connection, closes every socket and waits for the end of all tasks.
    pub async fn stop(mut self) {
        for task in &self.tasks {
            task.abort();
        }
        for task in std::mem::take(&mut self.tasks) {
            // Cancellation is the expected end; the runtime has reported a panic.
            let _ = task.await;
        }
        for rank in &self.state.ranks {
            if let Some(publisher) = &rank.publisher {
                publisher.cut().await;
            }
        }
    }
}

impl Drop for RunningEngine {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
