//! What the data plane does beside requests: each part is a supervised task of its own, apart from accepting.
//!
//! Each part goes by the time and by what others left for it, and keeps nothing of its own from one round to the next that a
//! panic could break: router, queue, judge, fleet and reservations are behind locks that are held for one call, and what one
//! round left half done the next one finds due again. A panic within the block index ends the index alone: it credits nobody
//! from then on, and further calls do nothing (`kv-index`).

use std::{convert::Infallible, sync::Arc, time::Duration};

use supervision::supervise;
use tokio::{
    task::JoinSet,
    time::{Interval, MissedTickBehavior},
};

use crate::{
    CurrentGateway, Gateway,
    memory::{self, ProcessMemory},
};

/// How often the router is told that time has passed.
const TICK: Duration = Duration::from_secs(1);

/// Starts every part; they end when this is dropped. What they do is shared by every gateway that is ever in force.
pub(crate) fn start(gateways: &Arc<CurrentGateway>) -> JoinSet<Infallible> {
    let mut tasks = JoinSet::new();
    let [router, parity, overdue, clusters, lists] = [(); 5].map(|()| gateways.current());
    let remembering = Arc::clone(gateways);
    tasks.spawn(async move { supervise("router_tick", || tick_router(&router)).await });
    tasks.spawn(async move { supervise("parity", || judge(&parity)).await });
    tasks.spawn(async move { supervise("housekeeping", || end_overdue(&overdue)).await });
    tasks.spawn(async move {
        supervise("memory_watch", || {
            memory::watch(&remembering, ProcessMemory)
        })
        .await
    });
    tasks.spawn(async move { supervise("cluster_learning", || learn(&clusters)).await });
    tasks.spawn(async move { supervise("model_lists", || lists.keep_model_list()).await });
    tasks
}

/// Tells the router that time has passed, and releases requests from the queue as they become due.
async fn tick_router(gateway: &Gateway) -> Infallible {
    let mut ticks = ticks();
    loop {
        tokio::select! {
            _ = ticks.tick() => gateway.waiters.tick(),
            () = gateway.waiters.run(&gateway.fleet) => {}
        }
    }
}

/// Judges predictions, and acts on what comes of it.
async fn judge(gateway: &Gateway) -> Infallible {
    let mut ticks = ticks();
    loop {
        tokio::select! {
            _ = ticks.tick() => gateway.parity_monitor.tick(gateway.clock.now()),
            () = gateway.parity_monitor.wait_for_change() => {}
        }
        gateway.parity_monitor.apply_changes();
    }
}

/// Ends what ran out, and takes leave of workers that nothing runs on any more.
async fn end_overdue(gateway: &Gateway) -> Infallible {
    let mut ticks = ticks();
    loop {
        ticks.tick().await;
        gateway.end_overdue();
        gateway.remove_drained();
    }
}

async fn learn(gateway: &Gateway) -> Infallible {
    match &gateway.clusters {
        Some(clusters) => clusters.embed_examples().await,
        None => std::future::pending().await,
    }
}

fn ticks() -> Interval {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
