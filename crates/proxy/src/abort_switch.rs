//! Aborts the requests that still run at the end of a drain: each client gets an error and not just
//! a closed connection.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use tokio::{sync::watch, task::coop::unconstrained};

/// Set once, when the drain time is up.
#[derive(Debug, Default)]
pub struct AbortSwitch {
    is_set: Arc<AtomicBool>,
    signal: watch::Sender<bool>,
}

impl AbortSwitch {
    /// Aborts all running requests.
    pub fn abort(&self) {
        self.is_set.store(true, Ordering::Release);
        self.signal.send_replace(true);
    }

    /// Returns a future that resolves when the switch is set.
    pub fn aborted(&self) -> AbortSignal {
        let mut switch = self.signal.subscribe();
        AbortSignal {
            is_set: Arc::clone(&self.is_set),
            registered: None,
            // It is polled once for each task, so that poll must register the task however long it
            // has already run.
            signal: Box::pin(unconstrained(async move {
                if switch.wait_for(|thrown| *thrown).await.is_err() {
                    // The switch is dropped and can never be set.
                    std::future::pending::<()>().await;
                }
            })),
        }
    }
}

/// A request's side of the switch.
///
/// A relayed reply polls it for each event, so a task that is registered already only reads a flag:
/// it takes no lock that all requests share.
pub struct AbortSignal {
    is_set: Arc<AtomicBool>,
    /// The task that the signal wakes.
    registered: Option<Waker>,
    signal: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for AbortSignal {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_set.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let waker = self.registered.as_ref();
        if waker.is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        self.registered = Some(cx.waker().clone());
        self.signal.as_mut().poll(cx)
    }
}

impl fmt::Debug for AbortSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AbortSignal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls a signal once.
    fn has_fired(signal: &mut AbortSignal) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        Pin::new(signal).poll(&mut cx).is_ready()
    }

    #[tokio::test]
    async fn an_abort_reaches_the_requests_that_run_and_those_that_begin_after_it() {
        let switch = AbortSwitch::default();
        let (mut running, waiting) = (switch.aborted(), switch.aborted());
        assert!(!has_fired(&mut running));
        let woken = tokio::spawn(waiting);
        tokio::task::yield_now().await;
        switch.abort();
        assert!(has_fired(&mut running));
        woken.await.expect("it is woken");
        assert!(has_fired(&mut switch.aborted()));
    }

    #[test]
    fn a_switch_that_is_gone_aborts_nothing() {
        let switch = AbortSwitch::default();
        let mut signal = switch.aborted();
        drop(switch);
        assert!(!has_fired(&mut signal));
    }
}
