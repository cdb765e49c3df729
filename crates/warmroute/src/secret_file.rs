//! Files that hold one secret.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use config::Secret;

/// Most bytes of such a file.
const MAX_BYTES: usize = 64 * 1024;

/// Returns the content of a file without the space around it. What was read is overwritten.
pub(crate) fn read(path: &Path) -> io::Result<Secret> {
    // With room for all of it: a text that grows leaves copies behind.
    let mut text = String::with_capacity(MAX_BYTES + 1);
    let read = File::open(path)?
        .take(MAX_BYTES as u64 + 1)
        .read_to_string(&mut text);
    let text = Secret::new(text);
    if read? > MAX_BYTES {
        let message = format!("it has more than {MAX_BYTES} bytes: expected a secret");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(Secret::new(text.expose().trim()))
}

/// Reads the key of `--api-key-file`, as a parser of that flag.
pub(crate) fn client_key(path: &str) -> Result<Secret, String> {
    let key =
        read(Path::new(path)).map_err(|error| format!("the file could not be read: {error}"))?;
    if key.expose().is_empty() {
        return Err("the file is empty: write the key of clients into it".to_owned());
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S80")]
    fn a_key_is_read_without_the_space_around_it_and_errors_do_not_quote_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let key = |content: &[u8]| {
            std::fs::write(path, content).unwrap();
            client_key(path).map(|key| key.expose().to_owned())
        };
        assert_eq!(key(b" sk-1\n"), Ok("sk-1".to_owned()));
        assert_eq!(key(&[b'k'; MAX_BYTES]).unwrap().len(), MAX_BYTES);
        assert!(key(b" \n").unwrap_err().contains("the file is empty"));
        for unusable in [&[b'k'; MAX_BYTES + 1][..], b"geheim \xff"] {
            let error = key(unusable).unwrap_err();
            assert!(error.starts_with("the file could not be read: "), "{error}");
            assert!(
                !error.contains("kkk") && !error.contains("geheim"),
                "{error}"
            );
        }
        assert!(client_key("/no/such/file").is_err());
    }
}
