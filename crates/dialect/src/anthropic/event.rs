//! Events of a message's stream.

use crate::json::ObjectWriter;

/// Writes one event; its name is also the first member of its data.
pub(super) fn event(out: &mut Vec<u8>, name: &str, describe: impl FnOnce(&mut ObjectWriter<'_>)) {
    let mut text = String::with_capacity(160);
    text.push_str("event: ");
    text.push_str(name);
    text.push_str("\ndata: ");
    let mut object = ObjectWriter::open(&mut text);
    object.text("type", name);
    describe(&mut object);
    object.close();
    text.push_str("\n\n");
    out.extend_from_slice(text.as_bytes());
}
