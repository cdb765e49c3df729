//! The check of a URL, which belongs to the code that connects.

/// Checks a worker's URL and returns its `host:port`, or an error message.
///
/// Passed in because the connecting code must validate a URL.
pub type CheckUrl = fn(&str) -> Result<String, String>;
