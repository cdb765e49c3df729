//! The end of a drain, told to every request that still runs: its client gets an error and not just a closed connection.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::sync::watch;

/// Thrown once, when the time of a drain is up.
#[derive(Debug, Default)]
pub(crate) struct AbortSwitch(watch::Sender<bool>);

impl AbortSwitch {
    /// Ends what still runs.
    pub(crate) fn abort(&self) {
        self.0.send_replace(true);
    }

    /// Resolves when the switch is thrown.
    pub(crate) fn aborted(&self) -> AbortSignal {
        let mut switch = self.0.subscribe();
        AbortSignal(Box::pin(async move {
            if switch.wait_for(|thrown| *thrown).await.is_err() {
                // Nobody is left who could throw it.
                std::future::pending::<()>().await;
            }
        }))
    }
}

/// A request's view of the switch.
pub(crate) struct AbortSignal(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Future for AbortSignal {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for AbortSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cutting")
    }
}
