//! Runs one workload under one policy on fresh engines.

use std::{sync::Arc, time::Duration};

use net::Clock;
use parking_lot::Mutex;
use routing::Policy;
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    DemoOutput,
    client::Client,
    cluster::{BLOCK_SIZE, DemoCluster, MODEL},
    explained,
    result::RunCounters,
    workload::{self, ChatSession},
};
use crate::output;

/// Interval of the progress line.
const PROGRESS: Duration = Duration::from_millis(250);
/// Reasons shown per round, spread over it.
const REASONS: usize = 5;

/// Runs the workload of `seed` under `policy` and returns its results.
pub(crate) async fn run(
    workers: u32,
    seed: u64,
    policy: Policy,
    output: DemoOutput,
) -> anyhow::Result<RunCounters> {
    let cluster = DemoCluster::start(workers, seed, policy).await?;
    let sessions = workload::sessions(seed, workers as usize);
    let requests: usize = sessions.iter().map(|session| session.turns.len()).sum();
    if output != DemoOutput::Silent {
        output::err(&format!(
            "\n{policy}: {workers} engines behind http://{} (admin http://{}), {} chats, {requests} requests",
            cluster.data,
            cluster.admin,
            sessions.len()
        ));
    }
    let counters = Arc::new(Mutex::new(RunCounters::default()));
    let mut chats = JoinSet::new();
    for session in sessions {
        let context = ChatContext {
            router: cluster.data.address().clone(),
            ring: Arc::clone(&cluster.router.ring),
            counters: Arc::clone(&counters),
            reason_every: requests / REASONS,
            output,
        };
        chats.spawn(chat(session, context));
    }
    let mut ticks = tokio::time::interval(PROGRESS);
    while !chats.is_empty() {
        tokio::select! {
            _ = chats.join_next() => {}
            _ = ticks.tick() => progress(&counters.lock(), policy, requests, output),
        }
    }
    progress(&counters.lock(), policy, requests, output);
    if output == DemoOutput::Terminal {
        output::err("");
    }
    cluster.stop().await;
    let counters = counters.lock().clone();
    Ok(counters)
}

/// Context shared by the chats of a round.
struct ChatContext {
    router: net::Address,
    ring: Arc<routing::receipt::ReceiptRing>,
    counters: Arc<Mutex<RunCounters>>,
    reason_every: usize,
    output: DemoOutput,
}

/// Simulates one user: waits, sends a turn, reads the reply, and repeats with the whole history in
/// the prompt.
async fn chat(session: ChatSession, context: ChatContext) {
    tokio::time::sleep(Duration::from_millis(session.starts_ms)).await;
    let mut client = Client::connect(&context.router, Clock::system()).await.ok();
    let mut messages = vec![json!({"role": "system", "content": session.system})];
    for turn in session.turns {
        tokio::time::sleep(Duration::from_millis(turn.thinks_ms)).await;
        messages.push(json!({"role": "user", "content": turn.message}));
        let answer = match &mut client {
            Some(client) => client.chat(MODEL, &messages, turn.reply_tokens).await,
            None => Err(anyhow::anyhow!("no connection")),
        };
        let Ok(answer) = answer else {
            context.counters.lock().failed();
            client = Client::connect(&context.router, Clock::system()).await.ok();
            messages.push(json!({"role": "assistant", "content": ""}));
            continue;
        };
        let done = {
            let mut counters = context.counters.lock();
            counters.answered(&answer, BLOCK_SIZE);
            counters.done()
        };
        if context.output != DemoOutput::Silent && done.is_multiple_of(context.reason_every.max(1))
        {
            explained::show(&context.ring, &answer, context.output);
        }
        messages.push(json!({"role": "assistant", "content": answer.text}));
    }
}

fn progress(counters: &RunCounters, policy: Policy, requests: usize, output: DemoOutput) {
    if output == DemoOutput::Terminal {
        use std::io::Write;
        let mut stderr = std::io::stderr().lock();
        let (done, hits) = (counters.done(), counters.hit_ratio() * 100.0);
        let _ = write!(
            stderr,
            "\r\x1b[K{policy:<12} {done:>4}/{requests} requests, {hits:4.1} % of blocks warm"
        );
        let _ = stderr.flush();
    }
}
