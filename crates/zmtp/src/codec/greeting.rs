//! The 64 bytes that open a connection.

use super::ProtocolError;

/// Length of a greeting.
pub(super) const LENGTH: usize = 64;

const MECHANISM: std::ops::Range<usize> = 12..32;
const NULL: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Returns our greeting: version 3.1, NULL mechanism, client.
pub(super) fn ours() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[0] = 0xff;
    // Padding that a version 1 peer reads as a length.
    bytes[8] = 0x01;
    bytes[9] = 0x7f;
    bytes[10] = 3;
    bytes[11] = 1;
    bytes[MECHANISM].copy_from_slice(NULL);
    bytes
}

/// Reads the peer's greeting, or the received part of it, so that a peer of another protocol is
/// detected by its first bytes. `Some(minor version)` once it is complete.
pub(super) fn read(bytes: &[u8]) -> Result<Option<u8>, ProtocolError> {
    let at = |index: usize| bytes.get(index).copied();
    if at(0).is_some_and(|byte| byte != 0xff) || at(9).is_some_and(|byte| byte & 1 == 0) {
        return Err(ProtocolError::NotZmtp);
    }
    if let Some(major) = at(10)
        && major < 3
    {
        return Err(ProtocolError::Version { major });
    }
    let Some(greeting) = bytes.get(..LENGTH) else {
        return Ok(None);
    };
    if greeting[MECHANISM] != *NULL {
        let name: Vec<u8> = greeting[MECHANISM]
            .iter()
            .copied()
            .take_while(|byte| *byte != 0)
            .collect();
        return Err(ProtocolError::Mechanism {
            name: String::from_utf8_lossy(&name).escape_debug().to_string(),
        });
    }
    // A later major version must speak ours when greeted with it.
    Ok(Some(if greeting[10] > 3 { 1 } else { greeting[11] }))
}
