//! The open publishers, by the numbers that C has as handles.

use std::{collections::BTreeMap, sync::Arc};

use event_publisher::{BlockSize, EventPublisher};
use parking_lot::Mutex;

use crate::call::CallError;

/// A publisher that was not shut down.
#[derive(Debug)]
pub(crate) struct OpenPublisher {
    pub(crate) events: EventPublisher,
    pub(crate) block_size: BlockSize,
}

/// Locked for a few lines. A child process in which it is locked would wait for ever in its calls: the
/// header says not to fork during one.
static OPEN: Mutex<OpenPublishers> = Mutex::new(OpenPublishers {
    last: 0,
    by_handle: BTreeMap::new(),
});

struct OpenPublishers {
    /// The last handle; none is given twice.
    last: usize,
    by_handle: BTreeMap<usize, Arc<OpenPublisher>>,
}

/// Returns the handle of a new publisher.
pub(crate) fn add(publisher: OpenPublisher) -> usize {
    let publisher = Arc::new(publisher);
    let mut open = OPEN.lock();
    open.last += 1;
    let handle = open.last;
    open.by_handle.insert(handle, publisher);
    handle
}

/// Returns the publisher with this handle; it stays usable during the call that found it.
///
/// # Errors
///
/// The handle is that of no open publisher, or of one that another process created before a fork.
pub(crate) fn find(handle: usize) -> Result<Arc<OpenPublisher>, CallError> {
    if handle == 0 {
        return Err(CallError::invalid_argument(
            "publisher is NULL: expected one that wr_publisher_create gave",
        ));
    }
    let found = OPEN.lock().by_handle.get(&handle).cloned();
    let found = found.ok_or_else(|| not_open(handle))?;
    found.events.check_process()?;
    Ok(found)
}

/// Ends the use of a handle, and returns its publisher.
///
/// # Errors
///
/// Those of [`find`]; of calls at once all but one fail.
pub(crate) fn take(handle: usize) -> Result<Arc<OpenPublisher>, CallError> {
    find(handle)?;
    let taken = OPEN.lock().by_handle.remove(&handle);
    taken.ok_or_else(|| not_open(handle))
}

fn not_open(handle: usize) -> CallError {
    CallError::conflict(format!(
        "publisher {handle:#x} is not open: expected one that wr_publisher_create gave and that was not shut down"
    ))
}
