//! The functions of the library. `cargo xtask c-header --write` generates the header from this file,
//! with its documentation.

#![allow(
    unsafe_code,
    reason = "the names of C functions, and pointers from C, which `arguments` checks"
)]

use std::{
    ffi::{c_char, c_int},
    ptr,
};

use event_publisher::{EventPublisher, PublisherOptions, StoredBlocks, WireHash};

use crate::{
    arguments,
    call::run,
    handles::{self, OpenPublisher},
    last_error, signals,
};

/// The place of all blocks that are published here.
const MEDIUM: &str = "GPU";

/// The call has done what it says.
pub const WR_OK: c_int = 0;
/// An argument cannot be used, or an endpoint cannot be listened on. Nothing has changed.
pub const WR_INVALID_ARGUMENT: c_int = 1;
/// The endpoint is in use, or the publisher is shut down or belongs to another process. Nothing has
/// changed.
pub const WR_CONFLICT: c_int = 2;
/// The system gave no thread, or the library has a defect.
pub const WR_INTERNAL: c_int = 3;

/// A publisher of one engine, or of one data-parallel rank of it. It is a handle and no address of
/// memory: a call with one that was shut down fails and does no harm.
#[derive(Debug)]
pub struct Publisher {
    _private: (),
}

/// Starts to listen for routers, and writes the new publisher to *out.
///
/// endpoint: where subscribers connect, "tcp://host:port" or "ipc:///absolute/path"; the host * is
/// every address of the machine, the port 0 any free port (see wr_publisher_endpoint).
///
/// replay_endpoint: where routers ask for batches that they missed, in the same form. With NULL they
/// cannot, and begin anew after a gap. The last 10,000 batches and 64 MiB are kept for them.
///
/// block_size: tokens per block, 1 to 65536.
///
/// out: gets the publisher; NULL if the call fails.
///
/// Returns WR_OK; WR_INVALID_ARGUMENT, WR_CONFLICT if an endpoint is in use, or WR_INTERNAL.
///
/// # Safety
///
/// The texts end with NUL, and out is NULL or the address of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_publisher_create(
    endpoint: *const c_char,
    replay_endpoint: *const c_char,
    block_size: u32,
    out: *mut *mut Publisher,
) -> c_int {
    run(|| {
        arguments::check_place("out", out)?;
        // SAFETY: `out` is neither null nor misaligned, so it is the address of a pointer.
        unsafe { out.write(ptr::null_mut()) };
        let block_size = arguments::block_size(block_size)?;
        // SAFETY: it is null or a C string of the caller, who waits for this call.
        let endpoint = unsafe { arguments::text("endpoint", endpoint) }?;
        let mut options = PublisherOptions::at(endpoint);
        if !replay_endpoint.is_null() {
            // SAFETY: as above.
            let replay = unsafe { arguments::text("replay_endpoint", replay_endpoint) }?;
            options.replay_endpoint = Some(replay);
        }
        let events = signals::with_all_blocked(|| EventPublisher::create(&options))?;
        let handle = handles::add(OpenPublisher { events, block_size });
        // SAFETY: as above.
        unsafe { out.write(ptr::without_provenance_mut(handle)) };
        Ok(())
    })
}

/// Publishes that blocks can be reused from now on. It never waits for a router.
///
/// tokens: the token ids of the blocks, one block after the other: n_tokens is n_hashes times the
/// publisher's block size.
///
/// hashes: the engine's names of the blocks, one for each. A name stands for the content of the block
/// and everything before it, and is in the call only once. With n_hashes 0 nothing is published.
///
/// parent_or_null: the address of the name of the block before the first one; NULL where a prompt
/// begins.
///
/// dp_rank: the data-parallel rank, 0 to 65535; 0 without data parallelism.
///
/// At most 4194304 tokens and as many hashes in one call. Both arrays are copied.
///
/// Returns WR_OK, WR_INVALID_ARGUMENT or WR_CONFLICT.
///
/// # Safety
///
/// The arrays have as many values as the call says, and parent_or_null is NULL or the address of one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_publisher_stored(
    publisher: *mut Publisher,
    tokens: *const u32,
    n_tokens: usize,
    hashes: *const u64,
    n_hashes: usize,
    parent_or_null: *const u64,
    dp_rank: u32,
) -> c_int {
    run(|| {
        let publisher = handles::find(publisher.addr())?;
        let rank = arguments::rank(dp_rank)?;
        // SAFETY: the arrays have these lengths, and their owner waits for this call.
        let tokens = unsafe { arguments::array("tokens", tokens, n_tokens) }?;
        // SAFETY: as above.
        let hashes = unsafe { arguments::array("hashes", hashes, n_hashes) }?;
        let parents = usize::from(!parent_or_null.is_null());
        // SAFETY: it is null or the address of one value.
        let parent = unsafe { arguments::array("parent_or_null", parent_or_null, parents) }?;
        let blocks = StoredBlocks {
            tokens: tokens.to_vec(),
            hashes: Some(names_of(hashes)),
            parent: parent.first().copied().map(WireHash::from),
            block_size: publisher.block_size,
            medium: MEDIUM.to_owned(),
            lora_name: None,
        };
        publisher.events.stored(blocks, rank)?;
        Ok(())
    })
}

/// Publishes that blocks have left the cache. It never waits for a router.
///
/// hashes: their names, as in wr_publisher_stored, at most 4194304. With n 0 nothing is published.
///
/// dp_rank: as in wr_publisher_stored.
///
/// Returns WR_OK, WR_INVALID_ARGUMENT or WR_CONFLICT.
///
/// # Safety
///
/// The array has n values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_publisher_removed(
    publisher: *mut Publisher,
    hashes: *const u64,
    n: usize,
    dp_rank: u32,
) -> c_int {
    run(|| {
        let publisher = handles::find(publisher.addr())?;
        let rank = arguments::rank(dp_rank)?;
        // SAFETY: the array has this length, and its owner waits for this call.
        let hashes = unsafe { arguments::array("hashes", hashes, n) }?;
        let medium = MEDIUM.to_owned();
        publisher.events.removed(names_of(hashes), medium, rank)?;
        Ok(())
    })
}

/// Publishes that the engine's whole cache is empty. It never waits for a router.
///
/// dp_rank: as in wr_publisher_stored.
///
/// Returns WR_OK, WR_INVALID_ARGUMENT or WR_CONFLICT.
#[unsafe(no_mangle)]
pub extern "C" fn wr_publisher_cleared(publisher: *mut Publisher, dp_rank: u32) -> c_int {
    run(|| {
        let publisher = handles::find(publisher.addr())?;
        let rank = arguments::rank(dp_rank)?;
        publisher.events.cleared(rank)?;
        Ok(())
    })
}

/// Writes the endpoint of subscribers to buffer, as text with NUL, with the port that the system
/// chose.
///
/// size: bytes of the buffer; 128 are enough for every tcp endpoint of an IP address.
///
/// Returns WR_OK; WR_INVALID_ARGUMENT, also if the buffer is too small, or WR_CONFLICT.
///
/// # Safety
///
/// The buffer has this size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_publisher_endpoint(
    publisher: *mut Publisher,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    run(|| {
        let publisher = handles::find(publisher.addr())?;
        let endpoint = publisher.events.endpoint().to_string();
        // SAFETY: the buffer has this size.
        unsafe { arguments::write_text(&endpoint, buffer, size) }
    })
}

/// Writes the replay endpoint, as wr_publisher_endpoint; an empty text without one.
///
/// # Safety
///
/// The buffer has this size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wr_publisher_replay_endpoint(
    publisher: *mut Publisher,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    run(|| {
        let publisher = handles::find(publisher.addr())?;
        let endpoint = publisher.events.replay_endpoint();
        let endpoint = endpoint.map(ToString::to_string).unwrap_or_default();
        // SAFETY: the buffer has this size.
        unsafe { arguments::write_text(&endpoint, buffer, size) }
    })
}

/// Stops listening, and ends the use of the publisher; calls of other threads fail from then on.
/// Subscribers have a second to take what was published: the call takes up to two seconds.
///
/// Returns WR_OK, WR_INVALID_ARGUMENT or WR_CONFLICT.
#[unsafe(no_mangle)]
pub extern "C" fn wr_publisher_shutdown(publisher: *mut Publisher) -> c_int {
    run(|| {
        // Of two threads that shut it down, the one that takes it waits for its end.
        let publisher = handles::take(publisher.addr())?;
        publisher.events.close()?;
        Ok(())
    })
}

/// Returns why the last failed call of this thread failed: the thing, its value and the expected
/// one. The text is empty before the first failure, and valid until the next one of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn wr_last_error() -> *const c_char {
    last_error::pointer()
}

fn names_of(hashes: &[u64]) -> Vec<WireHash> {
    hashes.iter().copied().map(WireHash::from).collect()
}
