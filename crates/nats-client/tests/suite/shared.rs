//! The connection that users of a process share.

use nats_client::SharedConnection;
use net::Clock;

use super::nats_server::NatsServer;

#[tokio::test]
async fn a_shared_connection_is_made_again_after_its_end() {
    test_programs::require!(NatsServer);
    let mut server = NatsServer::start(&[]);
    let shared = SharedConnection::spawn(server.dialer(), Clock::system());
    let mut state = shared.watch();
    state
        .wait_for(|state| state.client.is_some())
        .await
        .unwrap();
    server.kill();
    state
        .wait_for(|state| state.client.is_none())
        .await
        .unwrap();
    assert!(state.borrow().last_error.is_some());
    server.start_again();
    let again = state
        .wait_for(|state| state.client.is_some())
        .await
        .unwrap();
    assert!(again.connections >= 2);
}
