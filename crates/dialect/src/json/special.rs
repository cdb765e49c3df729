//! Finds the bytes that end the plain part of a JSON string: quotes, backslashes and control
//! characters.
//!
//! Prompts are nearly all plain bytes, and every request is searched, so this runs in vector
//! registers.

use wide::u8x16;

/// Bytes that are searched at once.
pub(super) const BLOCK: usize = 64;
const LANES: usize = 16;

/// Returns a bit for each special byte of the block, the lowest for the first byte.
#[inline]
pub(super) fn special_bytes(block: &[u8; BLOCK]) -> u64 {
    let mut special = 0;
    for (place, lanes) in block.as_chunks::<LANES>().0.iter().enumerate() {
        let lanes = u8x16::new(*lanes);
        let found = lanes.simd_eq(u8x16::splat(b'"'))
            | lanes.simd_eq(u8x16::splat(b'\\'))
            | lanes.min(u8x16::splat(0x1f)).simd_eq(lanes);
        special |= u64::from(found.to_bitmask()) << (place * LANES);
    }
    special
}

/// Returns the number of leading bytes that are not special.
#[inline]
pub(super) fn plain_bytes(bytes: &[u8]) -> usize {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    for (place, block) in blocks.iter().enumerate() {
        let special = special_bytes(block);
        if special != 0 {
            return place * BLOCK + special.trailing_zeros() as usize;
        }
    }
    let plain = rest.iter().take_while(|byte| !is_special(**byte)).count();
    blocks.len() * BLOCK + plain
}

#[inline]
pub(super) fn is_special(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | 0..0x20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_special_or_plain_at_every_place() {
        for byte in 0..=u8::MAX {
            for place in 0..BLOCK {
                let mut block = [b'a'; BLOCK];
                block[place] = byte;
                let expected = u64::from(is_special(byte)) << place;
                assert_eq!(special_bytes(&block), expected, "{byte:#x} at {place}");
            }
        }
    }

    #[test]
    fn the_plain_part_ends_at_the_first_special_byte_in_blocks_and_behind_them() {
        for length in [0, 1, 15, 63, 64, 65, 127, 128, 200] {
            let mut text = vec![0xc3; length];
            assert_eq!(plain_bytes(&text), length);
            for place in 0..length {
                text[place] = b'\n';
                text[length - 1] = b'"';
                assert_eq!(plain_bytes(&text), place);
                text[place] = b' ';
            }
        }
    }
}
