//! Load that routers tell each other.

use contract_id::contract;

use super::group::{Link, RouterGroup, engines, report};
use crate::harness::{RawClient, chat, eventually, streamed};

#[test]
#[contract("DY23")]
fn requests_of_one_router_count_in_the_others_until_they_end() {
    for link in Link::all() {
        let (_engines, workers) = engines(1, &[]);
        let group = RouterGroup::start(link, 3, workers);
        let streams = [
            group.long_stream(0, "one"),
            group.long_stream(0, "two"),
            group.long_stream(1, "three"),
        ];
        (0..3).for_each(|at| group.until_in_flight(at, "a", 3));
        drop(streams);
        (0..3).for_each(|at| group.until_in_flight(at, "a", 0));
    }
}

#[test]
#[contract("DY23")]
fn load_of_another_router_decides_where_the_next_request_goes() {
    for link in Link::all() {
        let (_engines, workers) = engines(2, &[]);
        let group = RouterGroup::start(link, 2, workers);
        // By load alone: no prompt is cached.
        let headers = [("x-warmroute-policy", "least_loaded")];
        let _streams = [
            group.long_stream(0, "one"),
            group.long_stream(0, "two"),
            group.long_stream(0, "three"),
        ];
        eventually(
            "the second router to count the streams of the first",
            || (group.in_flight(1, "a") + group.in_flight(1, "b") == 3).then_some(()),
        );
        let idler = match group.in_flight(1, "a") < group.in_flight(1, "b") {
            true => "a",
            false => "b",
        };
        let reply = group.chat(1, "four", &headers);
        assert_eq!(reply.header("x-warmroute-worker"), Some(idler));
    }
}

#[test]
#[contract("DY8")]
fn without_load_sync_each_router_counts_its_own_load() {
    for link in Link::all() {
        let (_engines, workers) = engines(1, &[]);
        let group = RouterGroup::with(link, 2, workers, ", load_sync: false");
        let _stream = group.long_stream(0, "one");
        group.until_in_flight(0, "a", 1);
        // A presence later than the stream.
        let seen = report(group.router(1))["replicas"][1]["since_s"].as_f64();
        eventually("another digest", || {
            let peer = &report(group.router(1))["replicas"][1];
            let later = peer["since_s"].as_f64() > seen.map(|seen| seen + 1.0);
            later.then_some(())
        });
        assert_eq!(group.in_flight(1, "a"), 0);
    }
}

#[test]
#[contract("DY24")]
fn a_new_router_starts_without_load_and_gets_that_of_the_others() {
    for link in Link::all() {
        let (_engines, workers) = engines(1, &[]);
        let mut group = RouterGroup::start(link, 2, workers);
        group.kill(1);
        let streams = [group.long_stream(0, "one"), group.long_stream(0, "two")];
        group.start_router(1);
        group.until_in_flight(1, "a", 2);
        let own = &report(group.router(1))["replicas"][0];
        assert_eq!(own["open_requests"], 0, "they are not its own");
        drop(streams);
        group.until_in_flight(1, "a", 0);
    }
}

#[test]
#[contract("DY23")]
fn a_router_tells_the_others_how_many_requests_wait_in_its_queue() {
    for link in Link::all() {
        // A tenth of a millisecond of real time for each prompt token.
        let (_engines, workers) = engines(1, &["--speed", "1", "--max-model-len", "65536"]);
        let group = RouterGroup::start(link, 2, workers);
        let send = |text: &str, words| {
            let text = format!("{text} {}", "word ".repeat(words));
            RawClient::chat(&group.router(0).data(), &streamed(chat("sim", &text, 1)))
        };
        let long = send("long", 60_000);
        group.until_in_flight(1, "a", 1);
        let waiting = [send("one", 2_000), send("other", 2_000)];
        let until_queued = |count: u64| {
            eventually("the other router to know of them", || {
                let queued = &report(group.router(1))["replicas"][1]["queued_requests"];
                (queued == count).then_some(())
            });
        };
        until_queued(2);
        drop((long, waiting));
        until_queued(0);
    }
}

#[test]
#[contract("F90")]
fn load_of_a_killed_router_goes_within_its_time_to_live() {
    for link in Link::all() {
        let (_engines, workers) = engines(1, &[]);
        let mut group = RouterGroup::start(link, 2, workers);
        let _streams = [group.long_stream(0, "one"), group.long_stream(0, "two")];
        group.until_in_flight(1, "a", 2);
        group.kill(0);
        group.until_in_flight(1, "a", 0);
        let lost = &report(group.router(1))["replicas"][1];
        assert_eq!(lost["state"], "lost");
        assert_eq!(lost["counted_requests"], 0);
    }
}
