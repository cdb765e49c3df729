//! Faults of the bus.

use contract_id::contract;

use super::group::{Link, RouterGroup, engines, states};
use crate::harness::{RouterQueries, eventually};

#[test]
#[contract("F52", "F53")]
fn requests_go_on_without_the_bus_and_load_agrees_again_after_its_return() {
    let (_engines, workers) = engines(2, &[]);
    let mut group = RouterGroup::start(Link::nats(), 2, workers);
    let before = group.long_stream(0, "before");
    eventually("the stream to count in both", || {
        (group.in_flight(1, "a") + group.in_flight(1, "b") == 1).then_some(())
    });
    let Link::Nats(server) = &mut group.link else {
        unreachable!("the link is a bus");
    };
    server.kill();
    eventually("the loss of the bus to be seen", || {
        (group.router(1).metric("warmroute_bus_connected", "") == 0.0).then_some(())
    });
    for at in [0, 1] {
        assert_eq!(group.chat(at, "meanwhile", &[]).status, 200);
    }
    // Nobody says that the stream has ended: it goes with the time to live.
    drop(before);
    eventually("the other router to be lost", || {
        (states(group.router(1)) == ["live", "lost"]).then_some(())
    });
    assert_eq!(group.in_flight(1, "a") + group.in_flight(1, "b"), 0);
    let during = group.long_stream(0, "during");
    let Link::Nats(server) = &mut group.link else {
        unreachable!("the link is a bus");
    };
    server.start_again();
    group.until_acquainted();
    eventually("the load to agree again", || {
        (group.in_flight(1, "a") + group.in_flight(1, "b") == 1).then_some(())
    });
    drop(during);
    eventually("the load to end", || {
        (group.in_flight(1, "a") + group.in_flight(1, "b") == 0).then_some(())
    });
}

#[test]
#[contract("F52")]
fn a_router_starts_and_serves_without_its_bus() {
    let (_engines, workers) = engines(1, &[]);
    let mut link = Link::nats();
    let Link::Nats(server) = &mut link else {
        unreachable!("the link is a bus");
    };
    server.kill();
    let mut group = RouterGroup::apart(link, 2, workers);
    for at in [0, 1] {
        assert_eq!(group.chat(at, "hello", &[]).status, 200);
        assert_eq!(states(group.router(at)), ["live"], "itself alone");
    }
    let Link::Nats(server) = &mut group.link else {
        unreachable!("the link is a bus");
    };
    server.start_again();
    group.until_acquainted();
}
