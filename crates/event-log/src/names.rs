//! Names on the server: all of them differ between fleets.

use nats_client::subject_token;
use xxhash_rust::xxh3::xxh3_64;

/// Longest part of a name, bytes.
const LONGEST_PART: usize = 64;

/// The names of one fleet's log. Routers with other parts share nothing.
///
/// ```
/// let names = event_log::LogNames::new("warmroute-kv", "prod", "router")?;
/// assert!(names.stream().starts_with("warmroute-kv_prod_router_"));
/// assert_eq!(names.subject("10.0.0.7:8000", 1), "warmroute-kv.prod.router.10=2E0=2E0=2E7=3A8000.1");
/// # Ok::<(), event_log::LogNameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogNames {
    base: String,
    prefix: String,
}

/// Why a text cannot be a part of a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value:?}: expected 1 to 64 letters, digits, - and _, as in {example}")]
pub struct LogNameError {
    /// The setting.
    pub key: &'static str,
    /// Its beginning.
    pub value: String,
    /// A value that can be used.
    pub example: &'static str,
}

impl LogNames {
    /// Derives the names from `replicas.nats.stream`, `replicas.namespace` and
    /// `replicas.component`.
    pub fn new(stream: &str, namespace: &str, component: &str) -> Result<Self, LogNameError> {
        let parts = [
            ("replicas.nats.stream", stream, "warmroute-kv"),
            ("replicas.namespace", namespace, "warmroute"),
            ("replicas.component", component, "router"),
        ];
        for (key, value, example) in parts {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            if value.is_empty() || value.len() > LONGEST_PART || !value.bytes().all(is_plain) {
                return Err(LogNameError {
                    key,
                    value: value.chars().take(80).collect(),
                    example,
                });
            }
        }
        // A dot separates the parts of a subject. The names of streams and buckets cannot have
        // one, so a digest distinguishes what the separator there cannot.
        let prefix = format!("{stream}.{namespace}.{component}");
        let digest = xxh3_64(prefix.as_bytes());
        Ok(Self {
            base: format!("{stream}_{namespace}_{component}_{digest:016x}"),
            prefix,
        })
    }

    /// Returns the name of the stream of events, and of the store of snapshots.
    pub fn stream(&self) -> &str {
        &self.base
    }

    /// Returns the subjects of all workers' streams.
    pub fn subjects(&self) -> String {
        format!("{}.>", self.prefix)
    }

    /// Returns the name of a bucket.
    pub fn bucket(&self, purpose: &str) -> String {
        format!("{}_{purpose}", self.base)
    }

    /// Returns the subject of one rank of a worker.
    pub fn subject(&self, worker: &str, rank: u32) -> String {
        format!("{}.{}", self.prefix, token(worker, rank))
    }

    /// Returns the part of a subject that names worker and rank; the key of the stream's owner,
    /// too.
    pub(crate) fn token_in<'a>(&self, subject: &'a str) -> Option<&'a str> {
        subject.strip_prefix(&self.prefix)?.strip_prefix('.')
    }
}

/// Returns worker and rank as two parts of a subject.
pub(crate) fn token(worker: &str, rank: u32) -> String {
    format!("{}.{rank}", subject_token(worker))
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn names(stream: &str, namespace: &str, component: &str) -> LogNames {
        LogNames::new(stream, namespace, component).unwrap()
    }

    #[test]
    #[contract("DY36")]
    fn fleets_with_other_names_share_no_name() {
        let all = [
            names("s", "a", "b"),
            names("s", "a_b", "c"),
            names("s", "a", "b_c"),
            names("s", "b", "a"),
            names("t", "a", "b"),
        ];
        for (index, one) in all.iter().enumerate() {
            for other in &all[index + 1..] {
                assert_ne!(one.stream(), other.stream());
                assert_ne!(one.subjects(), other.subjects());
                assert_ne!(one.bucket("owners"), other.bucket("owners"));
                assert_ne!(one.subject("w", 0), other.subject("w", 0));
            }
        }
    }

    #[test]
    fn a_part_with_another_character_or_length_is_refused() {
        let long = "a".repeat(65);
        for part in ["", "a.b", "a b", "*", ">", "ü", "a\r\nPUB", "a/b", &long] {
            let error = LogNames::new("s", part, "c").unwrap_err();
            assert!(
                error.to_string().starts_with("replicas.namespace is"),
                "{error}"
            );
            assert!(LogNames::new(part, "n", "c").is_err());
            assert!(LogNames::new("s", "n", part).is_err());
        }
    }

    #[test]
    fn every_worker_has_a_subject_of_its_own() {
        let long = "w".repeat(500);
        let workers = [
            "a",
            "a.b",
            "a=2Eb",
            "a b",
            "*",
            ">",
            "ü",
            "",
            &long,
            &long[1..],
        ];
        let names = names("s", "n", "c");
        let mut subjects: Vec<String> = workers
            .iter()
            .map(|worker| names.subject(worker, 0))
            .collect();
        subjects.push(names.subject("a", 1));
        for subject in &subjects {
            assert!(
                subject.len() < 250 && !subject.contains([' ', '*', '>']),
                "{subject}"
            );
            assert_eq!(subject.split('.').count(), 5, "{subject}");
        }
        let count = subjects.len();
        subjects.sort();
        subjects.dedup();
        assert_eq!(subjects.len(), count);
        assert_eq!(names.token_in(&names.subject("a", 7)), Some("a.7"));
        assert_eq!(names.token_in("s.other.c.a.7"), None);
    }
}
