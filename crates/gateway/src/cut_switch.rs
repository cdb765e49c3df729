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
pub(crate) struct CutSwitch(watch::Sender<bool>);

impl CutSwitch {
    /// Ends what still runs.
    pub(crate) fn throw(&self) {
        self.0.send_replace(true);
    }

    /// Resolves when the switch is thrown.
    pub(crate) fn thrown(&self) -> Cutting {
        let mut switch = self.0.subscribe();
        Cutting(Box::pin(async move {
            if switch.wait_for(|thrown| *thrown).await.is_err() {
                // Nobody is left who could throw it.
                std::future::pending::<()>().await;
            }
        }))
    }
}

/// A request's view of the switch.
pub(crate) struct Cutting(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Future for Cutting {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Cutting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cutting")
    }
}
