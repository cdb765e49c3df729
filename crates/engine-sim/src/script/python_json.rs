//! JSON as models learned to write it: with Python's spaces, which templates also write in the next
//! turn.

use std::io;

use serde::Serialize;
use serde_json::{Serializer, Value, ser::Formatter};

/// Returns `value` with a space after each comma and colon.
pub(super) fn serialize(value: &Value) -> String {
    let mut bytes = Vec::new();
    // Writing a value into memory does not fail.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut bytes, SpacedFormatter));
    String::from_utf8_lossy(&bytes).into_owned()
}

struct SpacedFormatter;

impl Formatter for SpacedFormatter {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_written_with_spaces() {
        assert_eq!(
            serialize(&json!({"a": [1, "x"], "b": null})),
            r#"{"a": [1, "x"], "b": null}"#
        );
    }
}
