//! How every function runs: its result as a code and a text, and no panic.

use std::{
    ffi::c_int,
    panic::{AssertUnwindSafe, catch_unwind},
};

use event_publisher::{ArgumentError, CreateError, PublishError};

use crate::{
    functions::{WR_CONFLICT, WR_INTERNAL, WR_INVALID_ARGUMENT, WR_OK},
    last_error,
};

/// Why a call failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallError {
    code: c_int,
    text: String,
}

impl CallError {
    pub(crate) fn invalid_argument(text: impl Into<String>) -> Self {
        Self {
            code: WR_INVALID_ARGUMENT,
            text: text.into(),
        }
    }

    pub(crate) fn conflict(text: impl Into<String>) -> Self {
        Self {
            code: WR_CONFLICT,
            text: text.into(),
        }
    }

    fn internal(text: impl Into<String>) -> Self {
        Self {
            code: WR_INTERNAL,
            text: text.into(),
        }
    }
}

impl From<ArgumentError> for CallError {
    fn from(error: ArgumentError) -> Self {
        Self::invalid_argument(error.0)
    }
}

impl From<CreateError> for CallError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Argument(error) => error.into(),
            CreateError::Unusable(error) => Self::invalid_argument(error.to_string()),
            CreateError::InUse(error) => Self::conflict(error.to_string()),
            CreateError::NoThread(error) => {
                Self::internal(format!("the publisher's thread cannot be started: {error}"))
            }
        }
    }
}

impl From<PublishError> for CallError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Argument(error) => error.into(),
            PublishError::Closed => {
                Self::conflict("publisher was shut down during this call: create another one")
            }
            PublishError::Forked { .. } => Self::conflict(error.to_string()),
        }
    }
}

/// Runs a call, and returns its code. The text of a failed one is the thread's last error.
pub(crate) fn run(call: impl FnOnce() -> Result<(), CallError>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        Err(CallError::internal(
            "a defect of this library stopped the call: the program's standard error has its place",
        ))
    });
    match result {
        Ok(()) => WR_OK,
        Err(error) => {
            last_error::record(&error.text);
            error.code
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("DY37")]
    fn a_panic_in_a_call_is_an_internal_error() {
        let code = run(|| -> Result<(), CallError> { panic!("a defect") });
        assert_eq!(code, WR_INTERNAL);
    }

    #[test]
    #[contract("DY37")]
    fn the_text_of_a_failed_call_is_that_of_its_thread_until_the_next_failure() {
        let code = run(|| Err(CallError::conflict("a text")));
        assert_eq!((code, run(|| Ok(()))), (WR_CONFLICT, WR_OK));
        assert_eq!(&*last_error::text(), c"a text");
        let other = std::thread::spawn(last_error::text).join();
        assert_eq!(other.expect("the thread ends"), CString::default());
    }
}
