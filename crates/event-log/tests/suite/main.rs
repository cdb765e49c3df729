//! The log's snapshots and its reset against a real `nats-server`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../nats-client/tests/nats_server/mod.rs"]
mod nats_server;
mod publishing;
mod snapshots;

use std::{sync::Arc, time::Duration};

use event_log::{EventLog, EventLogSettings, LogNames};
use nats_client::{Client, SharedConnection};
use nats_server::NatsServer;
use net::Clock;

async fn client(server: &NatsServer) -> Client {
    server.dialer().open().await.unwrap().client.clone()
}

fn names() -> LogNames {
    LogNames::new("kv", "prod", "router").unwrap()
}

fn start(server: &NatsServer, replica: &str) -> Arc<EventLog> {
    let clock = Clock::system();
    let settings = EventLogSettings {
        names: names(),
        replica: replica.into(),
        retention: Duration::from_secs(3_600),
    };
    EventLog::spawn(
        settings,
        SharedConnection::spawn(server.dialer(), clock),
        clock,
    )
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let within = tokio::time::timeout(Duration::from_secs(120), wait).await;
    assert!(within.is_ok(), "{what} never came");
}
