//! Text like that of prompts, for comparisons and measurements.

use super::samples::{PLAIN, WORDS};

/// Returns text like that of prompts, of about this many bytes: paragraphs of words of many
/// scripts, numbers, code and marks. It is equal for every caller, and no part of it repeats
/// another, so that no cache distorts a measurement.
pub fn prose(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 128);
    let mut state = 0x9e37_79b9_u32;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % below
    };
    while text.len() < bytes {
        match draw(40) {
            0 => text.push_str(PLAIN[30 + draw(PLAIN.len() - 30)]),
            1 => text.push_str(&draw(100_000).to_string()),
            // A name outside every vocabulary.
            2 => {
                (0..4 + draw(6)).for_each(|_| text.push(char::from(b"aeioubcdfglmnprst"[draw(17)])))
            }
            _ => text.push_str(WORDS[draw(WORDS.len())]),
        }
        text.push_str(match draw(24) {
            0 => ", ",
            1 => ". ",
            2 => ".\n\n",
            3 => ":\n- ",
            _ => " ",
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of the largest probe.
    const BYTES: usize = 72 << 10;

    #[test]
    fn prose_has_the_given_length_and_does_not_repeat() {
        let text = prose(BYTES);
        assert!((BYTES..BYTES + 256).contains(&text.len()));
        let lines: std::collections::HashSet<_> = text.split("\n\n").collect();
        assert!(lines.len() > 300);
        assert!(text.matches("\n\n").count() < lines.len() * 11 / 10);
    }
}
