//! The local model-hub cache: `models--ORG--NAME/snapshots/REVISION/`, with `refs/main` naming the
//! current revision.

use std::path::{Path, PathBuf};

/// Returns the snapshot directory of a model id, if the cache has one with a tokenizer in it.
///
/// The revision of `refs/main` wins; without it the newest snapshot. Reads directories: call it off
/// the runtime.
pub(crate) fn find_in_hub(cache: &Path, id: &str) -> Option<PathBuf> {
    // Ids are ORG/NAME. Anything else could climb out of the cache directory.
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    if id.matches('/').count() > 1 || !id.split('/').all(plain) {
        return None;
    }
    let model = cache.join(format!("models--{}", id.replace('/', "--")));
    let snapshots = model.join("snapshots");
    let usable = |dir: &Path| dir.join("tokenizer.json").is_file();
    if let Ok(revision) = std::fs::read_to_string(model.join("refs").join("main")) {
        let revision = revision.trim();
        if plain(revision) {
            let dir = snapshots.join(revision);
            if usable(&dir) {
                return Some(dir);
            }
        }
    }
    std::fs::read_dir(snapshots)
        .ok()?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|dir| usable(dir))
        .max_by_key(|dir| dir.metadata().and_then(|found| found.modified()).ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn snapshot(cache: &Path, revision: &str) -> PathBuf {
        let dir = cache.join("models--org--name/snapshots").join(revision);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("tokenizer.json"), "{}").unwrap();
        dir
    }

    #[test]
    fn the_revision_of_main_wins_over_other_snapshots() {
        let cache = tempfile::tempdir().unwrap();
        let old = snapshot(cache.path(), "aaa");
        snapshot(cache.path(), "bbb");
        let refs = cache.path().join("models--org--name/refs");
        fs::create_dir_all(&refs).unwrap();
        fs::write(refs.join("main"), "aaa\n").unwrap();
        assert_eq!(find_in_hub(cache.path(), "org/name"), Some(old));
    }

    #[test]
    fn a_snapshot_without_a_tokenizer_is_skipped() {
        let cache = tempfile::tempdir().unwrap();
        fs::create_dir_all(cache.path().join("models--org--name/snapshots/aaa")).unwrap();
        assert_eq!(find_in_hub(cache.path(), "org/name"), None);
        let found = snapshot(cache.path(), "bbb");
        assert_eq!(find_in_hub(cache.path(), "org/name"), Some(found));
        assert_eq!(find_in_hub(cache.path(), "org/other"), None);
    }

    #[test]
    fn an_id_cannot_escape_the_cache_directory() {
        let cache = tempfile::tempdir().unwrap();
        snapshot(cache.path(), "aaa");
        for id in [
            "../org/name",
            "..",
            "/etc",
            "org/../name",
            "",
            "a/b/c",
            "org/name/",
            "org/na me",
        ] {
            assert_eq!(find_in_hub(cache.path(), id), None, "{id}");
        }
    }
}
