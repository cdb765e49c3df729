//! Checks of the arguments that C passes.

#![allow(
    unsafe_code,
    reason = "pointers from C are read here, after what can be checked of them was"
)]

use std::{
    ffi::{CStr, c_char},
    ptr, slice,
};

use event_publisher::{BlockSize, DpRank, MOST_TOKENS};

use crate::call::CallError;

/// Returns a text that the caller passed as `argument`.
///
/// # Safety
///
/// The pointer is null or that of a C string which does not change while the result is used.
pub(crate) unsafe fn text<'a>(argument: &str, text: *const c_char) -> Result<&'a str, CallError> {
    if text.is_null() {
        return Err(CallError::invalid_argument(format!(
            "{argument} is NULL: expected a text"
        )));
    }
    // SAFETY: it is not null, so it is a C string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|error| {
        CallError::invalid_argument(format!(
            "{argument} is no UTF-8 from byte {} on: expected a text in UTF-8",
            error.valid_up_to()
        ))
    })
}

/// Returns an array that the caller passed as `argument`.
///
/// # Safety
///
/// The pointer is that of this many values which do not change while the result is used. With a
/// count of 0 it may be any pointer, null with any count.
pub(crate) unsafe fn array<'a, T>(
    argument: &str,
    items: *const T,
    count: usize,
) -> Result<&'a [T], CallError> {
    if count > MOST_TOKENS {
        return Err(CallError::invalid_argument(format!(
            "{argument} has {count} values: expected at most {MOST_TOKENS}"
        )));
    }
    if count == 0 {
        return Ok(&[]);
    }
    check_place(argument, items)?;
    // SAFETY: the pointer is neither null nor misaligned, so it is that of as many values; these take
    // far less than the address space.
    Ok(unsafe { slice::from_raw_parts(items, count) })
}

/// Checks the pointer of a value that is read or written.
pub(crate) fn check_place<T>(argument: &str, place: *const T) -> Result<(), CallError> {
    if place.is_null() {
        return Err(CallError::invalid_argument(format!(
            "{argument} is NULL: expected the address of a value"
        )));
    }
    if !place.is_aligned() {
        return Err(CallError::invalid_argument(format!(
            "{argument} is {place:p}: expected a multiple of {}, as its type has",
            align_of::<T>()
        )));
    }
    Ok(())
}

/// Writes a text with its NUL into the caller's buffer.
///
/// # Safety
///
/// The buffer is null or has this size.
pub(crate) unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    size: usize,
) -> Result<(), CallError> {
    check_place("buffer", buffer)?;
    if size <= text.len() {
        return Err(CallError::invalid_argument(format!(
            "buffer has {size} bytes: expected at least {}",
            text.len() + 1
        )));
    }
    // SAFETY: the buffer is not null, so it has `size` bytes, more than the text; it is the caller's,
    // so the text is not in it.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), buffer, text.len());
        buffer.add(text.len()).write(0);
    }
    Ok(())
}

/// Checks a number of tokens per block.
pub(crate) fn block_size(tokens: u32) -> Result<BlockSize, CallError> {
    BlockSize::new(u64::from(tokens)).map_err(|_| {
        CallError::invalid_argument(format!(
            "block_size is {tokens}: expected 1 to {} tokens",
            BlockSize::MAX
        ))
    })
}

/// Checks the number of a data-parallel rank.
pub(crate) fn rank(dp_rank: u32) -> Result<DpRank, CallError> {
    match u16::try_from(dp_rank) {
        Ok(_) => Ok(DpRank(dp_rank)),
        Err(_) => Err(CallError::invalid_argument(format!(
            "dp_rank is {dp_rank}: expected 0 to 65535"
        ))),
    }
}
