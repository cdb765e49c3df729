//! The data plane's periodic work: each part is a supervised task of its own, separate from
//! accepting.
//!
//! Each part acts on the time and on shared state, and keeps no state of its own between rounds
//! that a panic could break: router, queue, parity monitor, fleet and reservations are behind locks
//! held for one call, and the next round finds any unfinished work due again. A panic within the
//! block index disables the index alone: it credits no target from then on, and further calls do
//! nothing (`kv-index`).

use std::{convert::Infallible, sync::Arc, time::Duration};

use supervision::supervise;
use tokio::{
    task::JoinSet,
    time::{Interval, MissedTickBehavior},
};

use crate::{CurrentGateway, Gateway};

mod memory_relief;
mod memory_watch;

use self::memory_watch::ProcessMemory;

/// Interval of the router's tick.
const TICK: Duration = Duration::from_secs(1);

/// Starts every part; they end when the set is dropped. All gateways of a process share them.
pub(crate) fn start(gateways: &Arc<CurrentGateway>) -> JoinSet<Infallible> {
    let mut tasks = JoinSet::new();
    let [router, parity, overdue, clusters, lists] = [(); 5].map(|()| gateways.current());
    let remembering = Arc::clone(gateways);
    tasks.spawn(async move { supervise("router_tick", || tick_router(&router)).await });
    tasks.spawn(async move { supervise("parity", || advance_parity(&parity)).await });
    tasks.spawn(async move { supervise("housekeeping", || end_overdue(&overdue)).await });
    tasks.spawn(async move {
        supervise("memory_watch", || {
            memory_watch::watch(&remembering, ProcessMemory)
        })
        .await
    });
    tasks.spawn(async move { supervise("cluster_learning", || learn(&clusters)).await });
    tasks.spawn(async move { supervise("model_lists", || refresh_model_list(&lists)).await });
    tasks
}

/// Ticks the router, and releases requests from the queue as they become due.
async fn tick_router(gateway: &Gateway) -> Infallible {
    let mut ticks = ticks();
    loop {
        tokio::select! {
            _ = ticks.tick() => gateway.decider().waiters.tick(),
            () = gateway.decider().waiters.run(gateway.fleet()) => {}
        }
    }
}

/// Evaluates predictions and applies the resulting changes.
async fn advance_parity(gateway: &Gateway) -> Infallible {
    let mut ticks = ticks();
    loop {
        tokio::select! {
            _ = ticks.tick() => gateway.recorder.parity_monitor.tick(gateway.clock().now()),
            () = gateway.recorder.parity_monitor.wait_for_change() => {}
        }
        gateway.recorder.parity_monitor.apply_changes();
    }
}

/// Expires what has timed out, and removes drained workers.
async fn end_overdue(gateway: &Gateway) -> Infallible {
    let mut ticks = ticks();
    loop {
        ticks.tick().await;
        gateway.end_overdue();
        gateway.remove_drained();
    }
}

async fn learn(gateway: &Gateway) -> Infallible {
    match &gateway.generation.affinity().clusters {
        Some(clusters) => clusters.embed_examples().await,
        None => std::future::pending().await,
    }
}

/// Refreshes the model list when a client needs it or it gets old.
async fn refresh_model_list(gateway: &Gateway) -> Infallible {
    let catalog = &gateway.edge.catalog;
    catalog.lists.run(&catalog.fleet, catalog.clock).await
}

fn ticks() -> Interval {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
