//! The functions as C calls them.

#![allow(unsafe_code, reason = "the functions take pointers")]

use std::{
    ffi::{CStr, CString, c_char, c_int},
    ptr,
    sync::{Arc, Barrier},
};

use contract_id::contract;

use crate::{
    functions::{
        Publisher, WR_CONFLICT, WR_INVALID_ARGUMENT, WR_OK, wr_publisher_cleared,
        wr_publisher_create, wr_publisher_endpoint, wr_publisher_removed,
        wr_publisher_replay_endpoint, wr_publisher_shutdown, wr_publisher_stored,
    },
    last_error,
};

const FREE: &CStr = c"tcp://127.0.0.1:0";

/// The code of a call, and the text of a failed one.
fn result(code: c_int) -> (c_int, String) {
    let text = if code == WR_OK {
        String::new()
    } else {
        last_error::text().into_string().expect("it is UTF-8")
    };
    (code, text)
}

fn invalid(text: &str) -> (c_int, String) {
    (WR_INVALID_ARGUMENT, text.to_owned())
}

fn create(
    endpoint: *const c_char,
    replay: *const c_char,
    block_size: u32,
) -> Result<*mut Publisher, (c_int, String)> {
    let mut publisher = ptr::dangling_mut();
    // SAFETY: the texts of all tests are null or C strings, and `publisher` is a pointer.
    let code = unsafe { wr_publisher_create(endpoint, replay, block_size, &raw mut publisher) };
    if code == WR_OK {
        Ok(publisher)
    } else {
        assert!(publisher.is_null());
        Err(result(code))
    }
}

/// A publisher of blocks of two tokens.
fn publisher() -> *mut Publisher {
    create(FREE.as_ptr(), FREE.as_ptr(), 2).expect("a free port of this machine")
}

fn stored(
    publisher: *mut Publisher,
    tokens: &[u32],
    hashes: &[u64],
    parent: Option<u64>,
    rank: u32,
) -> (c_int, String) {
    let parent = parent.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the arrays have their lengths, and `parent` is null or the address of a value.
    result(unsafe {
        wr_publisher_stored(
            publisher,
            tokens.as_ptr(),
            tokens.len(),
            hashes.as_ptr(),
            hashes.len(),
            parent,
            rank,
        )
    })
}

fn removed(publisher: *mut Publisher, hashes: *const u64, n: usize, rank: u32) -> (c_int, String) {
    // SAFETY: the pointers of all tests are null, misaligned or those of `n` values, or `n` is more
    // than is read.
    result(unsafe { wr_publisher_removed(publisher, hashes, n, rank) })
}

type WriteEndpoint = unsafe extern "C" fn(*mut Publisher, *mut c_char, usize) -> c_int;

fn endpoint(write: WriteEndpoint, publisher: *mut Publisher, size: usize) -> (c_int, String) {
    let mut buffer = [c_char::MAX; 128];
    let size = size.min(buffer.len());
    // SAFETY: the buffer is at least this long.
    let code = unsafe { write(publisher, buffer.as_mut_ptr(), size) };
    if code != WR_OK {
        return result(code);
    }
    // SAFETY: the call has written a C string into the buffer.
    let text = unsafe { CStr::from_ptr(buffer.as_ptr()) };
    (code, text.to_str().expect("it is UTF-8").to_owned())
}

#[test]
#[contract("DY37")]
fn every_call_on_an_open_publisher_succeeds() {
    let publisher = publisher();
    let ok = (WR_OK, String::new());
    assert_eq!(stored(publisher, &[1, 2, 3, 4], &[5, 6], None, 0), ok);
    assert_eq!(stored(publisher, &[7, 8], &[9], Some(6), 65_535), ok);
    assert_eq!(stored(publisher, &[], &[], None, 0), ok);
    let hashes = [5, u64::MAX];
    assert_eq!(removed(publisher, hashes.as_ptr(), 2, 0), ok);
    assert_eq!(removed(publisher, ptr::null(), 0, 0), ok);
    assert_eq!(wr_publisher_cleared(publisher, 0), WR_OK);
    assert_eq!(wr_publisher_shutdown(publisher), WR_OK);
}

#[test]
#[contract("DY37")]
fn an_argument_of_create_that_cannot_be_used_is_named() {
    let free = FREE.as_ptr();
    for (endpoint, replay, block_size, said) in [
        (ptr::null(), free, 2, "endpoint is NULL: expected a text"),
        (
            c"\xffx".as_ptr(),
            free,
            2,
            "endpoint is no UTF-8 from byte 0 on: expected a text in UTF-8",
        ),
        (
            c"5557".as_ptr(),
            free,
            2,
            "endpoint: endpoint \"5557\" has no supported transport: write tcp://host:port or ipc:///path",
        ),
        (
            free,
            c"tcp://x".as_ptr(),
            2,
            "replay_endpoint: endpoint \"tcp://x\" is not host and port: write tcp://host:port, for example \
             tcp://10.0.0.5:5557",
        ),
        (free, free, 0, "block_size is 0: expected 1 to 65536 tokens"),
        (
            free,
            free,
            65_537,
            "block_size is 65537: expected 1 to 65536 tokens",
        ),
    ] {
        assert_eq!(create(endpoint, replay, block_size), Err(invalid(said)));
    }
    // SAFETY: both texts are C strings, and nothing is written to a null pointer.
    let code = unsafe { wr_publisher_create(free, free, 2, ptr::null_mut()) };
    assert_eq!(
        result(code),
        invalid("out is NULL: expected the address of a value")
    );
}

#[test]
#[contract("DY37")]
fn an_argument_of_an_event_that_cannot_be_used_is_named() {
    let publisher = publisher();
    for (refused, said) in [
        (
            stored(publisher, &[1, 2, 3], &[1], None, 0),
            "tokens has 3 tokens and hashes 1 blocks: expected 2 tokens, block_size for each block",
        ),
        (
            stored(publisher, &[1, 2, 3, 4], &[5, 5], None, 0),
            "hashes and parent name the block 5 twice: expected a hash for each block",
        ),
        (
            stored(publisher, &[1, 2], &[7], Some(7), 0),
            "hashes and parent name the block 7 twice: expected a hash for each block",
        ),
        (
            stored(publisher, &[1, 2], &[7], None, 65_536),
            "dp_rank is 65536: expected 0 to 65535",
        ),
        (
            removed(publisher, ptr::null(), 1, 0),
            "hashes is NULL: expected the address of a value",
        ),
        (
            removed(publisher, ptr::without_provenance(17), 1, 0),
            "hashes is 0x11: expected a multiple of 8, as its type has",
        ),
        (
            removed(publisher, ptr::without_provenance(16), 4_194_305, 0),
            "hashes has 4194305 values: expected at most 4194304",
        ),
        (
            result(wr_publisher_cleared(publisher, u32::MAX)),
            "dp_rank is 4294967295: expected 0 to 65535",
        ),
        (
            result(wr_publisher_cleared(ptr::null_mut(), 0)),
            "publisher is NULL: expected one that wr_publisher_create gave",
        ),
    ] {
        assert_eq!(refused, invalid(said));
    }
    assert_eq!(wr_publisher_shutdown(publisher), WR_OK);
}

#[test]
#[contract("DY37")]
fn bound_endpoints_are_written_where_the_buffer_is_large_enough() {
    let publisher = publisher();
    let mut seen = Vec::new();
    for write in [
        wr_publisher_endpoint as WriteEndpoint,
        wr_publisher_replay_endpoint,
    ] {
        let (code, text) = endpoint(write, publisher, 128);
        assert_eq!(code, WR_OK);
        let port = text.strip_prefix("tcp://127.0.0.1:").map(str::parse::<u16>);
        assert!(matches!(port, Some(Ok(1..))), "{text}");
        let needed = text.len() + 1;
        assert_eq!(endpoint(write, publisher, needed), (WR_OK, text.clone()));
        let small = format!(
            "buffer has {} bytes: expected at least {needed}",
            text.len()
        );
        assert_eq!(endpoint(write, publisher, text.len()), invalid(&small));
        seen.push(text);
    }
    assert_ne!(seen[0], seen[1]);
    // SAFETY: nothing is written to a null pointer.
    let code = unsafe { wr_publisher_endpoint(publisher, ptr::null_mut(), 128) };
    let no_buffer = "buffer is NULL: expected the address of a value";
    assert_eq!(result(code), invalid(no_buffer));
    assert_eq!(wr_publisher_shutdown(publisher), WR_OK);

    let alone = create(FREE.as_ptr(), ptr::null(), 2).expect("a free port of this machine");
    let none = endpoint(wr_publisher_replay_endpoint, alone, 1);
    assert_eq!(none, (WR_OK, String::new()));
    assert_eq!(wr_publisher_shutdown(alone), WR_OK);
}

#[test]
#[contract("DY37")]
fn an_endpoint_in_use_is_a_conflict_until_its_publisher_is_shut_down() {
    let publisher = publisher();
    let (_, text) = endpoint(wr_publisher_endpoint, publisher, 128);
    let again = CString::new(text).expect("it has no NUL");
    let (code, said) = create(again.as_ptr(), ptr::null(), 2).expect_err("it is in use");
    assert_eq!(code, WR_CONFLICT);
    assert!(said.contains("is already in use"), "{said}");
    assert_eq!(wr_publisher_shutdown(publisher), WR_OK);
    let second = create(again.as_ptr(), ptr::null(), 2).expect("the port is free again");
    assert_eq!(wr_publisher_shutdown(second), WR_OK);
}

#[test]
#[contract("DY37")]
fn a_publisher_that_was_shut_down_and_what_is_none_are_refused() {
    let publisher = publisher();
    assert_eq!(wr_publisher_shutdown(publisher), WR_OK);
    let none: *mut Publisher = ptr::without_provenance_mut(usize::MAX);
    for handle in [publisher, none] {
        let said = format!(
            "publisher {:#x} is not open: expected one that wr_publisher_create gave and that was not shut down",
            handle.addr()
        );
        let hashes = [1];
        for refused in [
            stored(handle, &[1, 2], &[1], None, 0),
            removed(handle, hashes.as_ptr(), 1, 0),
            result(wr_publisher_cleared(handle, 0)),
            endpoint(wr_publisher_endpoint, handle, 128),
            endpoint(wr_publisher_replay_endpoint, handle, 128),
            result(wr_publisher_shutdown(handle)),
        ] {
            assert_eq!(refused, (WR_CONFLICT, said.clone()));
        }
    }
}

#[test]
#[contract("DY37")]
fn threads_may_publish_while_another_one_shuts_the_publisher_down() {
    let handle = publisher().addr();
    let threads: Vec<_> = (0..4)
        .map(|rank| {
            std::thread::spawn(move || {
                let publisher = ptr::without_provenance_mut(handle);
                loop {
                    let code = wr_publisher_cleared(publisher, rank);
                    if code != WR_OK {
                        return code;
                    }
                }
            })
        })
        .collect();
    assert_eq!(
        wr_publisher_shutdown(ptr::without_provenance_mut(handle)),
        WR_OK
    );
    for thread in threads {
        assert_eq!(thread.join().expect("the thread ends"), WR_CONFLICT);
    }
}

#[test]
#[contract("DY37")]
fn of_threads_that_shut_a_publisher_down_at_once_one_succeeds() {
    let handle = publisher().addr();
    let together = Arc::new(Barrier::new(4));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let together = Arc::clone(&together);
            std::thread::spawn(move || {
                together.wait();
                wr_publisher_shutdown(ptr::without_provenance_mut(handle))
            })
        })
        .collect();
    let mut codes: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().expect("the thread ends"))
        .collect();
    codes.sort_unstable();
    assert_eq!(codes, [WR_OK, WR_CONFLICT, WR_CONFLICT, WR_CONFLICT]);
}
