//! The router's own end, with requests running.

use crate::{
    fleet::Simulated,
    harness::{RawClient, Sim as _, Stopwatch, chat, eventually, streamed},
};

const SLOW: &[&str] = &["--no-kv-events", "--itl-ms", "20", "--overhead-ms", "1"];

#[test]
fn a_stream_that_runs_at_sigterm_is_completed() {
    let fleet = Simulated::start(1, SLOW, "");
    let data = fleet.router.data();
    let mut stream = RawClient::chat(&data, &streamed(chat("sim", "hi", 50)));
    let mut plain = RawClient::chat(&data, &chat("sim", "hi", 40));
    let mut idle = RawClient::connect(&data);
    let begun = stream.read_until("content");
    eventually("both to run", || {
        let stats = fleet.engines[0].stats();
        (stats["running"] == 2).then_some(())
    });
    fleet.router.signal("TERM");
    assert!(idle.is_closed(), "a connection without a request is closed");
    let stream = stream.body(begun);
    assert!(stream.clean && stream.text().ends_with("data: [DONE]\n\n"), "{}", stream.text());
    let plain = plain.reply();
    assert!(plain.clean && plain.status == 200);
    let ended = fleet.router.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_stream_that_outlasts_the_drain_is_cut_with_the_error_event_and_the_exit_code_says_so() {
    let fleet = Simulated::start(1, SLOW, "server: {drain_timeout: 400ms}");
    let data = fleet.router.data();
    let mut stream = RawClient::chat(&data, &streamed(chat("sim", "hi", 5000)));
    let mut plain = RawClient::chat(&data, &chat("sim", "hi", 5000));
    let begun = stream.read_until("content");
    eventually("both to run", || {
        let stats = fleet.engines[0].stats();
        (stats["running"] == 2).then_some(())
    });
    fleet.router.signal("TERM");
    let told = Stopwatch::start();
    let stream = stream.body(begun);
    eprintln!("a drain of 400 ms cut its stream after {} ms", told.elapsed().as_millis());
    assert!(!stream.clean && !stream.text().contains("[DONE]"));
    assert!(stream.text().contains("\"code\":\"stream_interrupted\""), "{}", stream.text());
    let plain = plain.reply();
    assert_eq!((plain.status, plain.error_code().as_str()), (503, "draining"));
    let ended = fleet.router.wait();
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    eventually("the engine to be idle", || {
        let stats = fleet.engines[0].stats();
        (stats["running"] == 0 && stats["aborted"] == 2).then_some(())
    });
}
