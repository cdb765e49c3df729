//! A scripted HTTP stream server: the test writes to each connection itself.

use std::{sync::Arc, time::Duration};

use event_sources::{EventSink, PrefixSink, SourceHandle, SseSource, SseSpec, StreamReport};
use kv_blocks::SequenceHash;
use net::Clock;
use prefix_view::{MemoryPrefixIndex, PrefixHash, PrefixHashKind, PrefixIndex, ViewSettings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Time limit of a wait; only a failing test reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The reply head of an event stream.
pub(crate) const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nconnection: close\r\n\r\n";

/// Awaits a future within the time limit.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.unwrap()
}

/// A listener.
pub(crate) struct StreamServer {
    listener: TcpListener,
    pub(crate) port: u16,
}

impl StreamServer {
    pub(crate) async fn bind() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        Self { listener, port }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1/kv_events", self.port)
    }

    /// The next connection, with its request unread.
    pub(crate) async fn accept(&self) -> TcpStream {
        let (stream, _) = soon(self.listener.accept()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// The next connection, with its request read.
    pub(crate) async fn next_request(&self) -> ReceivedRequest {
        let mut stream = self.accept().await;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(soon(stream.read_u8()).await.unwrap());
        }
        ReceivedRequest {
            stream,
            head: String::from_utf8(head).unwrap(),
        }
    }

    /// The next connection, with the reply head of an event stream sent.
    pub(crate) async fn streaming(&self) -> ReceivedRequest {
        let mut request = self.next_request().await;
        request.send(HEAD).await;
        request
    }
}

/// A connection whose request has been read.
pub(crate) struct ReceivedRequest {
    pub(crate) stream: TcpStream,
    pub(crate) head: String,
}

impl ReceivedRequest {
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        soon(self.stream.write_all(bytes)).await.unwrap();
    }

    /// Sends one Continuum event.
    pub(crate) async fn event(&mut self, kind: &str, n: u8, tokens: u32) {
        self.send(event(kind, n, tokens).as_bytes()).await;
    }

    /// Waits until the other end has closed the connection.
    pub(crate) async fn closed(mut self) {
        let mut rest = Vec::new();
        // A close with unread bytes in the buffers resets the connection, which also counts as
        // closed.
        let _ = soon(self.stream.read_to_end(&mut rest)).await;
    }
}

/// The hash of prefix number `n`, as events have it.
pub(crate) fn hash(n: u8) -> String {
    format!("{n:016x}")
}

pub(crate) fn event(kind: &str, n: u8, tokens: u32) -> String {
    format!(
        "event: {kind}\ndata: {{\"prefix_hash\": \"{}\", \"token_count\": {tokens}}}\n\n",
        hash(n)
    )
}

/// A source that feeds its own prefix view.
pub(crate) struct Watcher {
    pub(crate) view: Arc<MemoryPrefixIndex>,
    pub(crate) source: SourceHandle,
}

impl Watcher {
    pub(crate) fn follow(url: &str) -> Self {
        Self::with(url, |_| {})
    }

    pub(crate) fn with(url: &str, change: impl FnOnce(&mut SseSpec)) -> Self {
        let view = Arc::new(MemoryPrefixIndex::new(ViewSettings::default()));
        let sink = PrefixSink::new(
            Arc::clone(&view) as Arc<dyn PrefixIndex>,
            "b1",
            PrefixHashKind::SequenceHash,
        );
        Self {
            view,
            source: follow(url, Box::new(sink), change),
        }
    }

    /// Returns the prefixes of `0..16` that the backend holds, with their token counts.
    pub(crate) fn resident(&self) -> Vec<(u8, u32)> {
        let now = Clock::system().now();
        let tokens = |n: u8| {
            let holders = self
                .view
                .query(&PrefixHash::Sequence(SequenceHash(n.into())), now)
                .unwrap();
            holders.first().map(|holder| (n, holder.tokens))
        };
        (0..16).filter_map(tokens).collect()
    }

    pub(crate) async fn until(
        &self,
        what: &str,
        matches_report: impl Fn(&StreamReport, &[(u8, u32)]) -> bool,
    ) -> StreamReport {
        let mut changes = self.source.changes();
        let wait = async {
            loop {
                let report = self.source.report();
                if matches_report(&report, &self.resident()) {
                    return report;
                }
                changes.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(report) => report,
            Err(_) => panic!(
                "{what} never came: {:?}, held {:?}",
                self.source.report(),
                self.resident()
            ),
        }
    }

    pub(crate) async fn until_resident(&self, prefixes: &[(u8, u32)]) -> StreamReport {
        self.until(&format!("holding {prefixes:?}"), |_, resident| {
            resident == prefixes
        })
        .await
    }
}

/// Follows `url` with short pauses.
pub(crate) fn follow(
    url: &str,
    sink: Box<dyn EventSink>,
    change: impl FnOnce(&mut SseSpec),
) -> SourceHandle {
    let mut spec = SseSpec::new("b1", url.parse().unwrap());
    spec.reconnect_interval = Duration::from_millis(20);
    change(&mut spec);
    SseSource::spawn(spec, sink, Clock::system())
}
