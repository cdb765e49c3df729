//! A server on a thread of its own, whose allocations are counted on request.

use std::{
    error::Error,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use allocation_counter::AllocationInfo;
use tokio::{runtime::Builder, sync::oneshot};

/// The thread of a server. It serves while it counts.
pub(crate) struct CountedServer {
    port: u16,
    /// Each ends one count.
    counts: Sender<oneshot::Receiver<()>>,
    counted: Receiver<AllocationInfo>,
}

impl CountedServer {
    /// Starts a server on its thread: `start` returns its port.
    pub(crate) fn start<F>(
        start: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Self, Box<dyn Error>>
    where
        F: Future<Output = u16>,
    {
        let (ports, port) = channel();
        let (counts, to_count) = channel::<oneshot::Receiver<()>>();
        let (results, counted) = channel();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            // Whoever started it may have gone.
            let _ = ports.send(runtime.block_on(start()));
            while let Ok(end) = to_count.recv() {
                let info = allocation_counter::measure(|| {
                    let _ = runtime.block_on(end);
                });
                let _ = results.send(info);
            }
        });
        Ok(Self {
            port: port.recv()?,
            counts,
            counted,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Counts what the server allocates while `work` runs.
    pub(crate) fn count<T>(&self, work: impl FnOnce() -> T) -> (AllocationInfo, T) {
        let (end, ended) = oneshot::channel();
        let _ = self.counts.send(ended);
        let result = work();
        let _ = end.send(());
        (self.counted.recv().unwrap_or_default(), result)
    }
}
