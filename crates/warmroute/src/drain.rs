//! Drain of the data listener: a signal or an operator begins it; only the first call counts.

use std::{sync::Arc, time::Duration};

use config::ServerSection;
use gateway::{DrainResult, ListenerPhase};
use net::Clock;
use time::OffsetDateTime;
use tokio::sync::watch;

/// State of the data listener from running to ended.
#[derive(Debug)]
pub(crate) struct DrainProgress {
    phase: watch::Sender<ListenerPhase>,
    start: watch::Sender<Option<DrainStart>>,
    ended: watch::Sender<Option<DrainResult>>,
    server: ServerSection,
    clock: Clock,
}

/// Treatment of new connections during a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewConnections {
    /// Served by this process during the grace time.
    Served,
    /// Refused.
    Refused,
    /// Served by another process, which has our listening sockets.
    HandedOver,
}

#[derive(Clone, Copy, Debug)]
struct DrainStart {
    since: OffsetDateTime,
    grace: Duration,
    timeout: Duration,
}

impl DrainProgress {
    /// Returns the state of a listener that runs.
    pub(crate) fn new(server: ServerSection, clock: Clock) -> Arc<Self> {
        let (phase, start) = (watch::Sender::default(), watch::Sender::default());
        Arc::new(Self {
            phase,
            start,
            ended: watch::Sender::default(),
            server,
            clock,
        })
    }

    /// Returns the phases for the listener to follow.
    pub(crate) fn phases(&self) -> watch::Receiver<ListenerPhase> {
        self.phase.subscribe()
    }

    /// Runs the listener to its end, and aborts its requests when the time of a drain is up.
    pub(crate) async fn carry(self: Arc<Self>, listener: impl Future<Output = DrainResult>) {
        let _notifier = DrainNotifier(&self);
        let time_up = async {
            let mut start = self.start.subscribe();
            // Ends with the sender only, which is `self`.
            if let Ok(Some(start)) = start.wait_for(Option::is_some).await.map(|start| *start) {
                tokio::time::sleep(start.grace).await;
                self.reach(ListenerPhase::Drain);
                tokio::time::sleep(start.timeout).await;
                self.cut();
            }
            std::future::pending::<DrainResult>().await
        };
        let drained = tokio::select! {
            drained = listener => drained,
            drained = time_up => drained,
        };
        self.ended.send_replace(Some(drained));
    }

    /// Begins the drain; running requests may take `timeout`. A repeated call changes nothing.
    pub(crate) fn begin(&self, new_connections: NewConnections, timeout: Option<Duration>) {
        let grace = if new_connections == NewConnections::Refused {
            Duration::ZERO
        } else {
            self.server.drain_grace
        };
        let start = DrainStart {
            since: self.clock.wall(),
            grace,
            timeout: timeout.unwrap_or(self.server.drain_timeout),
        };
        let first = self
            .start
            .send_if_modified(|known| known.is_none() && known.replace(start).is_none());
        if first {
            tracing::info!(
                grace_s = start.grace.as_secs_f64(),
                timeout_s = start.timeout.as_secs_f64(),
                "draining: running requests may end"
            );
            self.reach(match new_connections {
                NewConnections::Served => ListenerPhase::Leaving,
                NewConnections::Refused => ListenerPhase::Drain,
                NewConnections::HandedOver => ListenerPhase::HandedOver,
            });
        }
    }

    /// Aborts the requests that still run.
    pub(crate) fn cut(&self) {
        self.reach(ListenerPhase::Cut);
    }

    /// Advances to `phase`; a phase is never left for an earlier one.
    fn reach(&self, phase: ListenerPhase) {
        self.phase.send_if_modified(|reached| {
            let news = *reached < phase;
            *reached = phase.max(*reached);
            news
        });
    }

    /// Waits until the listener has ended.
    pub(crate) async fn ended(&self) -> DrainResult {
        let mut ended = self.ended.subscribe();
        let drained = ended
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|drained| *drained);
        drained.unwrap_or(DrainResult { cut: 0 })
    }

    /// Returns the progress, with this many requests running.
    pub(crate) fn status(&self, running: u64) -> admin::DrainStatus {
        let cut = self.ended.borrow().map_or(0, |drained| drained.cut);
        admin::DrainStatus {
            since: self.start.borrow().map(|start| start.since),
            open_streams: running,
            cut_streams: u64::try_from(cut).unwrap_or(u64::MAX),
        }
    }
}

/// Drop guard that reports the end of the listener to all waiters, also after a panic.
struct DrainNotifier<'a>(&'a DrainProgress);

impl Drop for DrainNotifier<'_> {
    fn drop(&mut self) {
        self.0.ended.send_if_modified(|ended| {
            ended.is_none() && ended.replace(DrainResult { cut: 0 }).is_none()
        });
    }
}
