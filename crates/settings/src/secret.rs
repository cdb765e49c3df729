//! A text that is never displayed.

use std::fmt;

use zeroize::Zeroizing;

/// A secret: prints as `***` everywhere; only [`Self::expose`] returns the text. Its memory is
/// overwritten when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a text. A `String` is not copied.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// Returns the text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt as _};

    use contract_id::contract;

    use super::*;

    /// Returns this process's memory at the address, as the kernel sees it.
    fn memory(address: usize, bytes: usize) -> Vec<u8> {
        let mut seen = vec![0; bytes];
        let memory = File::open("/proc/self/mem").expect("a process can read its memory");
        match memory.read_exact_at(&mut seen, address as u64) {
            Ok(()) => seen,
            // The allocator gave the page back.
            Err(_) => Vec::new(),
        }
    }

    /// Returns where the secret's text is; the caller does not keep a reference.
    fn address(secret: &Secret) -> usize {
        secret.expose().as_ptr().addr()
    }

    #[test]
    #[contract("S81")]
    fn the_memory_of_a_dropped_secret_no_longer_holds_its_text() {
        // Long enough for the allocator's own notes in freed memory to cover only a part.
        let text: String = (b'a'..=b'z').cycle().take(512).map(char::from).collect();
        let tail = &text.as_bytes()[256..];
        let secret = Secret::new(text.clone());
        let copy = secret.clone();
        let places = [address(&secret), address(&copy)];
        for place in places {
            assert_eq!(memory(place, 512), text.as_bytes(), "the control");
        }
        drop((secret, copy));
        for place in places {
            let after = memory(place, 512);
            assert!(
                !after.ends_with(tail),
                "{}",
                String::from_utf8_lossy(&after)
            );
        }
    }

    #[test]
    #[contract("S81")]
    fn the_memory_of_a_dropped_value_of_a_file_no_longer_holds_its_text() {
        let text: String = (b'a'..=b'z').cycle().take(512).map(char::from).collect();
        let tail = &text.as_bytes()[256..];
        let node = crate::ValueNode::Text(text.clone().into());
        let crate::ValueNode::Text(held) = &node else {
            panic!("it is a text");
        };
        let place = held.as_ptr().addr();
        assert_eq!(memory(place, 512), text.as_bytes(), "the control");
        drop(node);
        assert!(!memory(place, 512).ends_with(tail));
    }

    #[test]
    #[contract("S81")]
    fn a_text_becomes_a_secret_without_a_copy_that_would_stay() {
        let text = "a key of clients".to_owned();
        let place = text.as_ptr().addr();
        assert_eq!(address(&Secret::new(text)), place);
    }
}
