//! The end of the data listener: begun by a signal or by an operator, once, whoever comes first.

use std::{sync::Arc, time::Duration};

use gateway::{Drained, Phase};
use net::Clock;
use time::OffsetDateTime;
use tokio::sync::watch;

/// A listener's way to its end.
#[derive(Debug)]
pub(crate) struct Draining {
    phase: watch::Sender<Phase>,
    begun: watch::Sender<Option<Begun>>,
    ended: watch::Sender<Option<Drained>>,
    usual: Duration,
    clock: Clock,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    since: OffsetDateTime,
    timeout: Duration,
}

impl Draining {
    /// Running requests may take `usual`, where whoever begins does not say.
    pub(crate) fn new(usual: Duration, clock: Clock) -> Arc<Self> {
        let (phase, begun) = (watch::Sender::default(), watch::Sender::default());
        Arc::new(Self { phase, begun, ended: watch::Sender::default(), usual, clock })
    }

    /// What the listener goes by.
    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Runs the listener to its end, and cuts it when the time of a drain is up.
    pub(crate) async fn carry(self: Arc<Self>, listener: impl Future<Output = Drained>) {
        let _told = Told(&self);
        let time_up = async {
            let mut begun = self.begun.subscribe();
            // Ends with the sender only, which is `self`.
            if let Ok(begun) = begun.wait_for(Option::is_some).await.map(|begun| *begun) {
                tokio::time::sleep(begun.map_or(self.usual, |begun| begun.timeout)).await;
                self.cut();
            }
            std::future::pending::<Drained>().await
        };
        let drained = tokio::select! {
            drained = listener => drained,
            drained = time_up => drained,
        };
        self.ended.send_replace(Some(drained));
    }

    /// No new connections; running requests may take `timeout`. A repeated call changes nothing.
    pub(crate) fn begin(&self, timeout: Option<Duration>) {
        let begun = Begun { since: self.clock.wall(), timeout: timeout.unwrap_or(self.usual) };
        let first = self.begun.send_if_modified(|known| known.is_none() && known.replace(begun).is_none());
        if first {
            tracing::info!(timeout_s = begun.timeout.as_secs_f64(), "draining: running requests may end");
            self.phase.send_replace(Phase::Drain);
        }
    }

    /// Cuts what still runs.
    pub(crate) fn cut(&self) {
        self.phase.send_replace(Phase::Cut);
    }

    /// Waits until the listener has ended.
    pub(crate) async fn ended(&self) -> Drained {
        let mut ended = self.ended.subscribe();
        let drained = ended.wait_for(Option::is_some).await.ok().and_then(|drained| *drained);
        drained.unwrap_or(Drained { cut: 0 })
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
struct Told<'a>(&'a Draining);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.ended.send_if_modified(|ended| ended.is_none() && ended.replace(Drained { cut: 0 }).is_none());
    }
}
