//! The client against a real `nats-server`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod jetstream;
mod key_value;
#[path = "../nats_server/mod.rs"]
mod nats_server;
mod objects;
mod shared;

use nats_client::NatsConnection;
use nats_server::NatsServer;

async fn connect(server: &NatsServer) -> NatsConnection {
    server.dialer().open().await.unwrap()
}
