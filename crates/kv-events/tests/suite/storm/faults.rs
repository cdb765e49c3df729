//! Faults of single messages in transit.

use std::collections::VecDeque;

use super::random::SplitMix64;

/// The frames of a message.
pub(crate) type MultipartMessage = Vec<Vec<u8>>;

/// Sends a message, which may be lost, duplicated, or overtake earlier ones.
pub(crate) fn send(
    dice: &mut SplitMix64,
    wire: &mut VecDeque<MultipartMessage>,
    message: MultipartMessage,
) {
    match dice.below(100) {
        0..8 => {}
        8..13 => wire.extend([message.clone(), message]),
        13..17 => wire.push_front(message),
        _ => wire.push_back(message),
    }
}

/// Duplicates, delays or drops messages in transit.
pub(crate) fn disturb(dice: &mut SplitMix64, wire: &mut VecDeque<MultipartMessage>) {
    if wire.is_empty() {
        return;
    }
    let (one, other) = (dice.below(wire.len()), dice.below(wire.len()));
    match dice.below(3) {
        0 => wire.swap(one, other),
        1 => wire.insert(other, wire[one].clone()),
        _ => drop(wire.remove(one)),
    }
}

/// In this percentage of cases, drops or truncates a frame or flips one of its bits. Returns
/// whether it did.
pub(crate) fn corrupt(
    dice: &mut SplitMix64,
    percent: usize,
    message: &mut MultipartMessage,
) -> bool {
    if !dice.chance(percent) {
        return false;
    }
    let frame = dice.below(message.len());
    let bytes = &mut message[frame];
    if bytes.is_empty() || dice.chance(20) {
        message.remove(frame);
    } else if dice.chance(30) {
        bytes.truncate(dice.below(bytes.len()));
    } else {
        let at = dice.below(bytes.len());
        bytes[at] ^= 1 << dice.below(8);
    }
    true
}
