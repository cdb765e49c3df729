//! The SHA-256 of a key, the only form in which keys are kept.

use std::fmt;

use sha2::{Digest, Sha256};

/// The digest of a key.
///
/// A lookup by it takes the same time whatever part of a wrong key is right: the digests of similar
/// keys are unlike.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

/// The SHA-256 of nothing.
const OF_NOTHING: KeyDigest = KeyDigest([
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
]);

/// A text that is no SHA-256 in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongDigest;

impl KeyDigest {
    /// Returns the digest of a key.
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// Returns whether this is the digest of the empty text, which is no key.
    pub fn is_of_nothing(&self) -> bool {
        *self == OF_NOTHING
    }

    /// Returns 64 hexadecimal digits.
    pub fn to_hex(self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = self.0.iter().flat_map(|&byte| [byte >> 4, byte & 15]);
        digits
            .map(|digit| char::from(DIGITS[usize::from(digit)]))
            .collect()
    }

    /// Reads 64 hexadecimal digits.
    ///
    /// # Errors
    ///
    /// Any other text.
    pub fn from_hex(text: &str) -> Result<Self, WrongDigest> {
        let digits = text.trim().as_bytes();
        let mut digest = [0; 32];
        if digits.len() != 64 {
            return Err(WrongDigest);
        }
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(WrongDigest);
            let value = digit(pair[0])? * 16 + digit(pair[1])?;
            *byte = u8::try_from(value).map_err(|_| WrongDigest)?;
        }
        Ok(Self(digest))
    }
}

/// Shows nothing: the digest of a short key can be found by trial.
impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_in_hexadecimal_is_that_of_its_key() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(KeyDigest::from_hex(abc), Ok(KeyDigest::of(b"abc")));
        assert_eq!(KeyDigest::of(b"abc").to_hex(), abc);
        let spelled = format!(" {}\n", abc.to_uppercase());
        assert_eq!(KeyDigest::from_hex(&spelled), Ok(KeyDigest::of(b"abc")));
        for wrong in [
            "",
            "ba78",
            &abc[1..],
            &format!("{abc}0"),
            &abc.replace('b', "g"),
        ] {
            assert_eq!(KeyDigest::from_hex(wrong), Err(WrongDigest), "{wrong}");
        }
        let wide = "\u{e4}".repeat(32);
        assert_eq!(KeyDigest::from_hex(&wide), Err(WrongDigest));
        assert_eq!(format!("{:?}", KeyDigest::of(b"abc")), "***");
    }

    #[test]
    fn only_the_digest_of_an_empty_text_is_of_nothing() {
        assert!(KeyDigest::of(b"").is_of_nothing());
        assert!(!KeyDigest::of(b" ").is_of_nothing());
    }
}
