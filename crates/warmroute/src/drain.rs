//! The end of the data listener: begun by a signal or by an operator, once, whoever comes first.

use std::{sync::Arc, time::Duration};

use gateway::{DrainResult, ListenerPhase};
use net::Clock;
use time::OffsetDateTime;
use tokio::sync::watch;

/// A listener's way to its end.
#[derive(Debug)]
pub(crate) struct DrainProgress {
    phase: watch::Sender<ListenerPhase>,
    begun: watch::Sender<Option<DrainStart>>,
    ended: watch::Sender<Option<DrainResult>>,
    usual: DrainDefaults,
    clock: Clock,
}

/// How long things take where whoever begins does not say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrainDefaults {
    /// New connections are still served, for those who do not know yet.
    pub(crate) grace: Duration,
    /// Running requests may take so long.
    pub(crate) timeout: Duration,
}

/// Who takes new connections during a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewConnections {
    /// This process, for a while.
    Served,
    /// Nobody.
    Refused,
    /// Another process, which has our listening sockets.
    HandedOver,
}

#[derive(Clone, Copy, Debug)]
struct DrainStart {
    since: OffsetDateTime,
    grace: Duration,
    timeout: Duration,
}

impl DrainProgress {
    /// Not begun.
    pub(crate) fn new(usual: DrainDefaults, clock: Clock) -> Arc<Self> {
        let (phase, begun) = (watch::Sender::default(), watch::Sender::default());
        Arc::new(Self {
            phase,
            begun,
            ended: watch::Sender::default(),
            usual,
            clock,
        })
    }

    /// What the listener goes by.
    pub(crate) fn phases(&self) -> watch::Receiver<ListenerPhase> {
        self.phase.subscribe()
    }

    /// Runs the listener to its end, and cuts it when the time of a drain is up.
    pub(crate) async fn carry(self: Arc<Self>, listener: impl Future<Output = DrainResult>) {
        let _told = DrainNotifier(&self);
        let time_up = async {
            let mut begun = self.begun.subscribe();
            // Ends with the sender only, which is `self`.
            if let Ok(Some(begun)) = begun.wait_for(Option::is_some).await.map(|begun| *begun) {
                tokio::time::sleep(begun.grace).await;
                self.reach(ListenerPhase::Drain);
                tokio::time::sleep(begun.timeout).await;
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

    /// Ends with what runs, which may take `timeout`. A repeated call changes nothing.
    pub(crate) fn begin(&self, new_connections: NewConnections, timeout: Option<Duration>) {
        let grace = if new_connections == NewConnections::Refused {
            Duration::ZERO
        } else {
            self.usual.grace
        };
        let begun = DrainStart {
            since: self.clock.wall(),
            grace,
            timeout: timeout.unwrap_or(self.usual.timeout),
        };
        let first = self
            .begun
            .send_if_modified(|known| known.is_none() && known.replace(begun).is_none());
        if first {
            tracing::info!(
                grace_s = begun.grace.as_secs_f64(),
                timeout_s = begun.timeout.as_secs_f64(),
                "draining: running requests may end"
            );
            self.reach(match new_connections {
                NewConnections::Served => ListenerPhase::Leaving,
                NewConnections::Refused => ListenerPhase::Drain,
                NewConnections::HandedOver => ListenerPhase::HandedOver,
            });
        }
    }

    /// Cuts what still runs.
    pub(crate) fn cut(&self) {
        self.reach(ListenerPhase::Cut);
    }

    /// There is no way back.
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

    /// How far it is, with so many requests running.
    pub(crate) fn status(&self, running: u64) -> admin::DrainStatus {
        let cut = self.ended.borrow().map_or(0, |drained| drained.cut);
        admin::DrainStatus {
            since: self.begun.borrow().map(|begun| begun.since),
            open_streams: running,
            cut_streams: u64::try_from(cut).unwrap_or(u64::MAX),
        }
    }
}

/// Whoever waits for the end is told of it, also of one by a panic.
struct DrainNotifier<'a>(&'a DrainProgress);

impl Drop for DrainNotifier<'_> {
    fn drop(&mut self) {
        self.0.ended.send_if_modified(|ended| {
            ended.is_none() && ended.replace(DrainResult { cut: 0 }).is_none()
        });
    }
}
