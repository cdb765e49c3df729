//! The text of each thread's last failed call.

use std::{
    cell::RefCell,
    ffi::{CString, c_char},
};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// Replaces the text of this thread.
pub(crate) fn record(text: &str) {
    // Texts are made from numbers and from C strings, which have no NUL in them.
    let text = CString::new(text).unwrap_or_default();
    // At the end of a thread nobody can ask for it.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
}

/// Returns the text of this thread, which is valid until the next call of [`record`] on it.
pub(crate) fn pointer() -> *const c_char {
    LAST_ERROR
        .try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// Returns a copy of the text of this thread.
#[cfg(test)]
pub(crate) fn text() -> CString {
    LAST_ERROR.with_borrow(CString::clone)
}
