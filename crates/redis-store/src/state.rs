//! Whether the server is there.

use tokio::sync::watch;

/// Which of the server's times: the first one, and one more each time that it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch(pub(crate) u64);

#[derive(Clone, Copy, Debug)]
struct ServerPresence {
    epoch: Epoch,
    is_up: bool,
}

/// Away until it was seen.
#[derive(Debug)]
pub(crate) struct PoolState(watch::Sender<ServerPresence>);

impl PoolState {
    pub(crate) fn away() -> Self {
        Self(watch::Sender::new(ServerPresence {
            epoch: Epoch(0),
            is_up: false,
        }))
    }

    /// `None`: it is away.
    pub(crate) fn up(&self) -> Option<Epoch> {
        let presence = *self.0.borrow();
        presence.is_up.then_some(presence.epoch)
    }

    pub(crate) fn mark_up(&self) {
        self.0.send_modify(|presence| {
            *presence = ServerPresence {
                epoch: Epoch(presence.epoch.0 + 1),
                is_up: true,
            }
        });
    }

    /// Says whether this is news: a fault of an earlier time tells nothing about the present one.
    pub(crate) fn mark_down(&self, epoch: Epoch) -> bool {
        self.0.send_if_modified(|presence| {
            let news = presence.is_up && presence.epoch == epoch;
            presence.is_up &= !news;
            news
        })
    }

    /// Waits until it is there, or is not. Never ends if it never comes to that.
    pub(crate) async fn wait_until(&self, is_up: bool) {
        let mut presence = self.0.subscribe();
        // The sender lives as long as this does.
        let _ = presence.wait_for(|presence| presence.is_up == is_up).await;
    }
}
