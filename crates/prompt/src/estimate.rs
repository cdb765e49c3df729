//! The length of a prompt without known tokens.

/// Average bytes of a token in current vocabularies.
const BYTES_PER_TOKEN: usize = 4;

/// Returns the approximate number of tokens of a text with this many bytes.
pub fn estimate_tokens(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_estimated_as_four_bytes() {
        assert_eq!(
            (
                estimate_tokens(0),
                estimate_tokens(1),
                estimate_tokens(8),
                estimate_tokens(9)
            ),
            (0, 1, 2, 3)
        );
    }
}
