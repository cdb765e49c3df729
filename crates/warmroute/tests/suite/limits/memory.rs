//! The resources that the router gives up as the process nears its memory budget.

use std::{sync::mpsc, time::Duration};

use contract_id::contract;

use crate::{
    faults::fleet::CHAT,
    harness::{Program, RawClient, RouterQueries as _, chat, eventually, streamed},
};

/// The middle of each stage, in permille of the budget.
const MIDDLE: [u64; 5] = [400, 850, 925, 965, 1100];

/// A router whose budget a test sets relative to its memory use.
struct PressuredRouter {
    router: Program,
    engine: Program,
    file: tempfile::NamedTempFile,
}

impl PressuredRouter {
    fn start() -> Self {
        let engine = Program::engine(&["--no-kv-events", "--itl-ms", "20"]);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "").unwrap();
        let router =
            Program::serve(&[engine.url()], &["-c", file.path().to_str().unwrap()]).ready(1);
        Self {
            router,
            engine,
            file,
        }
    }

    fn stage(&self) -> f64 {
        self.router.metric("warmroute_memory_stage", "")
    }

    /// Sets the budget of the running router so that its memory use is in the middle of a stage.
    fn press(&self, stage: usize) {
        eventually("the stage", || {
            let budget = self.router.resident() * 1000 / MIDDLE[stage];
            std::fs::write(
                self.file.path(),
                format!("server: {{memory_budget: {budget}}}\n"),
            )
            .unwrap();
            assert_eq!(
                RawClient::post(&self.router.admin(), "/admin/reload", b"{}").status,
                200
            );
            std::thread::sleep(Duration::from_millis(300));
            (self.stage() == stage as f64).then_some(())
        });
    }

    /// The result of an `act` that ran entirely in this stage. The memory use also changes by
    /// itself.
    fn within<T>(&self, stage: usize, act: impl Fn() -> T) -> T {
        eventually("a stage without a change", || {
            self.press(stage);
            let result = act();
            (self.stage() == stage as f64).then_some(result)
        })
    }

    fn post(&self, padding: usize) -> crate::harness::RawReply {
        let body = format!("{}{}", chat("sim", "hi", 1), " ".repeat(padding));
        RawClient::post(&self.router.data(), CHAT, body.as_bytes())
    }

    /// Announces a body of this many bytes with `Expect: 100-continue`.
    fn announced(&self, bytes: usize) -> crate::harness::RawReply {
        let mut client = RawClient::connect(&self.router.data());
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: {bytes}\r\n\r\n"
        );
        client.send_bytes(head.as_bytes());
        client.reply()
    }

    fn degraded(&self) -> bool {
        let health = RawClient::get(&self.router.data(), "/health").json();
        health["degraded"]
            .as_array()
            .unwrap()
            .iter()
            .any(|part| part == "memory")
    }
}

#[test]
#[contract("F75", "I10", "I13")]
fn memory_pressure_refuses_large_bodies_then_requests_then_connections_and_cuts_no_stream() {
    let pressed = PressuredRouter::start();
    let mut stream = RawClient::chat(&pressed.router.data(), &streamed(chat("sim", "hi", 20_000)));
    stream.read_until("data: ");
    let mut runs = || {
        assert!(
            stream.chunk().is_some_and(|chunk| !chunk.is_empty()),
            "the stream goes on"
        )
    };
    assert_eq!(
        (pressed.post(2 << 20).status, pressed.degraded()),
        (200, false)
    );

    let large = pressed.within(1, || (pressed.post(2 << 20).status, pressed.degraded()));
    assert_eq!(large, (200, true), "caches are the first to go");
    runs();

    let (refused, small) = pressed.within(2, || (pressed.announced(2 << 20), pressed.post(0)));
    assert_eq!(
        (refused.status, refused.error_code().as_str()),
        (503, "overloaded")
    );
    assert!(
        refused.header("retry-after").is_some() && refused.text().contains("server.memory_budget")
    );
    assert_eq!(small.status, 200);
    runs();

    let shed = || {
        pressed
            .router
            .metric("warmroute_shed_total", "reason=\"memory\"")
    };
    let (before, refused, alive, after) = pressed.within(3, || {
        let before = shed();
        (
            before,
            pressed.post(0),
            RawClient::get(&pressed.router.data(), "/livez"),
            shed(),
        )
    });
    assert_eq!((refused.status, after - before), (503, 1.0));
    assert_eq!(alive.status, 200, "it is alive");
    runs();

    pressed.press(4);
    let (answered, answer) = mpsc::channel();
    let data = pressed.router.data();
    let waits = std::thread::spawn(move || answered.send(RawClient::get(&data, "/livez").status));
    assert!(
        answer.recv_timeout(Duration::from_millis(500)).is_err(),
        "no connection is accepted"
    );
    runs();

    pressed.press(0);
    assert_eq!(
        answer.recv_timeout(Duration::from_secs(120)),
        Ok(200),
        "a connection that waited is accepted"
    );
    waits.join().unwrap().unwrap();
    assert_eq!(
        (pressed.post(2 << 20).status, pressed.degraded()),
        (200, false)
    );
    runs();
    let log = pressed.router.stderr();
    assert!(
        log.contains("memory stage changed") && log.contains("not_accepting"),
        "{log}"
    );
    drop(stream);
    pressed.router.wait_until_idle();
    drop(pressed.engine);
}
