//! The local model-hub cache: `models--ORG--NAME/snapshots/REVISION/`, with `refs/main` naming the
//! current revision.

use std::path::{Path, PathBuf};

/// The local model-hub cache: a directory of `models--ORG--NAME/snapshots/REVISION/`. Nothing is
/// ever downloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubCache(pub Option<PathBuf>);

impl HubCache {
    /// Finds the directory the way the hub's own tools do: `HF_HUB_CACHE`, else `HF_HOME`/hub, else
    /// `HOME`/.cache/huggingface/hub. `env` is looked up by name.
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| {
            env(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self(
            set("HF_HUB_CACHE")
                .or_else(|| set("HF_HOME").map(|home| home.join("hub")))
                .or_else(|| set("HOME").map(|home| home.join(".cache/huggingface/hub"))),
        )
    }
}

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

    #[test]
    fn the_hub_cache_is_found_in_the_order_its_own_tools_use() {
        let all = [("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h"), ("HOME", "/u")];
        let find = |from: &'static [(&str, &str)]| {
            HubCache::from_env(move |name| {
                from.iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| (*value).to_owned())
            })
            .0
        };
        let all: &'static [(&str, &str)] = Box::leak(Box::new(all));
        assert_eq!(find(all), Some("/c".into()));
        assert_eq!(find(&all[1..]), Some("/h/hub".into()));
        assert_eq!(find(&all[2..]), Some("/u/.cache/huggingface/hub".into()));
        assert_eq!(find(&[("HF_HUB_CACHE", "")]), None);
    }
}
