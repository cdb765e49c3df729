//! Writes replies as msgpack.

use rmp::encode;
use serde_json::Value;

/// Appends `value`. Only the router's own replies are written: they nest a few levels deep, and
/// their parts are shorter than 2^32.
pub(crate) fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => done(encode::write_nil(out)),
        Value::Bool(yes) => done(encode::write_bool(out, *yes)),
        Value::Number(number) => {
            if let Some(number) = number.as_u64() {
                done(encode::write_uint(out, number));
            } else if let Some(number) = number.as_i64() {
                done(encode::write_sint(out, number));
            } else {
                done(encode::write_f64(out, number.as_f64().unwrap_or(f64::NAN)));
            }
        }
        Value::String(text) => done(encode::write_str(out, text)),
        Value::Array(list) => {
            done(encode::write_array_len(out, length(list.len())));
            list.iter().for_each(|value| write(value, out));
        }
        Value::Object(map) => {
            done(encode::write_map_len(out, length(map.len())));
            for (key, value) in map {
                done(encode::write_str(out, key));
                write(value, out);
            }
        }
    }
}

fn length(length: usize) -> u32 {
    u32::try_from(length).expect("an answer has fewer than 2^32 parts")
}

fn done<T, E: std::fmt::Debug>(written: Result<T, E>) {
    written.expect("writing to memory does not fail");
}
