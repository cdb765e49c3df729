//! A publisher that repeats an engine's events with the changes of a test.

use std::{thread::JoinHandle, time::Duration};

use tokio::sync::oneshot;
use zmtp::{Limits, Pub, PubSettings, Sub, SubEvent};

/// Changes a message: topic, number, batch. `None`: the message is lost.
pub(crate) type MessageChange = fn(Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>>;

/// The relay. Dropping it stops it.
pub(crate) struct TestRelay {
    pub(crate) endpoint: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TestRelay {
    /// Follows the publisher at `engine`; connected to it when this returns.
    pub(crate) fn of(engine: &str, change: MessageChange) -> Self {
        let engine = engine.parse().expect("an endpoint");
        let (ready, connected) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let any = "tcp://127.0.0.1:0".parse().expect("an endpoint");
                let (publisher, endpoint) = Pub::bind(&any, PubSettings::default())
                    .await
                    .expect("a free port");
                let mut sub =
                    Sub::connect(&engine, &[b""], Limits::default()).expect("a destination");
                let passing = async {
                    loop {
                        match sub.next().await {
                            // The subscription may not be active yet; the engine publishes nothing
                            // before its first request.
                            SubEvent::Connected { .. } => drop(ready.send(endpoint.to_string())),
                            SubEvent::Message { frames, .. } => {
                                let frames = frames.iter().map(|frame| frame.to_vec()).collect();
                                if let Some(frames) = change(frames) {
                                    publisher.send(&frames);
                                }
                            }
                            _ => {}
                        }
                    }
                };
                tokio::select! {
                    () = passing => {}
                    _ = stopped => {}
                }
            });
        });
        let endpoint = connected
            .recv_timeout(Duration::from_secs(120))
            .expect("the relay connects");
        Self {
            endpoint,
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for TestRelay {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The batch with every `from` replaced. A msgpack string has its length in its first byte, and no
/// other length covers it.
pub(crate) fn replaced(batch: &[u8], from: &str, to: &str) -> Vec<u8> {
    let (from, to) = (short_text(from), short_text(to));
    let mut out = Vec::new();
    let mut rest = batch;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(from.as_slice()) {
            out.extend_from_slice(&to);
            rest = after;
        } else {
            out.push(rest[0]);
            rest = &rest[1..];
        }
    }
    out
}

/// A msgpack string of up to 31 bytes.
pub(crate) fn short_text(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).expect("a short text");
    assert!(length < 32, "{text}");
    [&[0xa0 | length], text.as_bytes()].concat()
}
