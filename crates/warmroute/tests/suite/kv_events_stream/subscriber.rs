//! A reader of the stream.

use std::{
    sync::{Arc, Mutex},
    thread,
};

use serde_json::Value;

use crate::harness::{Program, RawClient, eventually};

/// The bytes that a subscriber has received so far.
#[derive(Debug, Default)]
struct SentEvents {
    text: String,
    /// Whether the reply has ended, and whether cleanly.
    ended: Option<bool>,
}

/// A subscriber that reads everything. It ends with the router.
pub(crate) struct Subscriber {
    sent: Arc<Mutex<SentEvents>>,
}

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct SubscriberEvent {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

impl Subscriber {
    /// Subscribes, and returns when the subscription is accepted.
    pub(crate) fn new(router: &Program, query: &str) -> Self {
        Self::reading(connected(router, query))
    }

    /// Reads the rest of this reply.
    pub(crate) fn reading(mut client: RawClient) -> Self {
        let sent = Arc::new(Mutex::new(SentEvents::default()));
        let into = Arc::clone(&sent);
        thread::spawn(move || {
            loop {
                // A cut connection reads as an error inside a chunk.
                let chunk =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client.chunk()))
                        .unwrap_or(None);
                let mut sent = into.lock().unwrap();
                match chunk {
                    Some(bytes) if !bytes.is_empty() => {
                        sent.text.push_str(&String::from_utf8_lossy(&bytes))
                    }
                    end => {
                        sent.ended = Some(end.is_some());
                        return;
                    }
                }
            }
        });
        Self { sent }
    }

    /// All complete events so far.
    pub(crate) fn events(&self) -> Vec<SubscriberEvent> {
        let sent = self.sent.lock().unwrap();
        let whole = sent.text.rfind("\n\n").map_or("", |end| &sent.text[..end]);
        whole
            .split("\n\n")
            .filter(|event| !event.is_empty() && !event.starts_with(':'))
            .map(SubscriberEvent::parse)
            .collect()
    }

    /// All events, once one has this name.
    pub(crate) fn until(&self, name: &str) -> Vec<SubscriberEvent> {
        eventually(&format!("an event {name}"), || {
            let events = self.events();
            events
                .iter()
                .any(|event| event.name == name)
                .then_some(events)
        })
    }

    /// Whether the reply has ended, and if so, whether as its framing announced.
    pub(crate) fn ended(&self) -> Option<bool> {
        self.sent.lock().unwrap().ended
    }
}

impl SubscriberEvent {
    fn parse(text: &str) -> Self {
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::to_owned)
        };
        let data = field("data: ").unwrap_or_else(|| panic!("an event without data: {text:?}"));
        Self {
            id: field("id: "),
            name: field("event: ").unwrap_or_else(|| panic!("an event without a name: {text:?}")),
            data: serde_json::from_str(&data)
                .unwrap_or_else(|_| panic!("data that is no JSON: {text:?}")),
        }
    }
}

/// A subscription of which only the head is read.
pub(crate) fn connected(router: &Program, query: &str) -> RawClient {
    let mut client = RawClient::connect(&router.admin());
    client.send("GET", &format!("/v1/kv_events{query}"), &[], b"");
    let head = client.head();
    assert_eq!(
        (head.status, head.header("content-type")),
        (200, Some("text/event-stream")),
        "{head:?}"
    );
    client
}
