//! The client against a real `nats-server`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod jetstream;
mod key_value;
#[path = "../nats_server/mod.rs"]
mod nats_server;
mod objects;
mod shared;

use nats_client::{NatsConnection, NatsDialer};
use nats_server::NatsServer;
use net::Destinations;

fn dialer(server: &NatsServer) -> NatsDialer {
    NatsDialer {
        server: server.url().parse().unwrap(),
        credentials: None,
        trust: None,
        destinations: Destinations::Any,
        name: "test".to_owned(),
    }
}

async fn connect(server: &NatsServer) -> NatsConnection {
    dialer(server).open().await.unwrap()
}
