//! Whether the server is up.

use tokio::sync::watch;

/// Number of an uptime period of the server: each time it comes back, a new one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch(pub(crate) u64);

#[derive(Clone, Copy, Debug)]
struct ServerPresence {
    epoch: Epoch,
    is_up: bool,
}

/// State of the server: down until the first successful check.
#[derive(Debug)]
pub(crate) struct PoolState(watch::Sender<ServerPresence>);

impl PoolState {
    pub(crate) fn disconnected() -> Self {
        Self(watch::Sender::new(ServerPresence {
            epoch: Epoch(0),
            is_up: false,
        }))
    }

    /// Returns the current epoch; `None` if the server is down.
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

    /// Records an outage and returns whether it is new: a fault of an earlier epoch does not apply
    /// to this one.
    pub(crate) fn mark_down(&self, epoch: Epoch) -> bool {
        self.0.send_if_modified(|presence| {
            let is_new = presence.is_up && presence.epoch == epoch;
            presence.is_up &= !is_new;
            is_new
        })
    }

    /// Waits until the server is up, or down. Never ends if that does not happen.
    pub(crate) async fn wait_until(&self, is_up: bool) {
        let mut presence = self.0.subscribe();
        // The sender lives as long as this object.
        let _ = presence.wait_for(|presence| presence.is_up == is_up).await;
    }
}
