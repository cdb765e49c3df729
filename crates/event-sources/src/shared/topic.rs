//! Topics that name their publisher and model: `kv@<pod>@<model>`.

use std::str;

/// A topic in the form that llm-d's guides configure for engines.
///
/// ```
/// use event_sources::PodTopic;
///
/// let topic = PodTopic::parse(b"kv@10.0.0.7:8000@Qwen/Qwen3-8B").unwrap();
/// assert_eq!((topic.pod, topic.model), ("10.0.0.7:8000", "Qwen/Qwen3-8B"));
/// assert_eq!(PodTopic::parse(b"kv-events"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodTopic<'a> {
    /// The pod: an address, mostly with a port.
    pub pod: &'a str,
    /// The model.
    pub model: &'a str,
}

impl<'a> PodTopic<'a> {
    /// Parses a topic; returns `None` for one of another form. A model's name may contain an `@`, a
    /// pod's may not.
    pub fn parse(topic: &'a [u8]) -> Option<Self> {
        let (pod, model) = str::from_utf8(topic)
            .ok()?
            .strip_prefix("kv@")?
            .split_once('@')?;
        (!pod.is_empty() && !model.is_empty()).then_some(Self { pod, model })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_topics_with_both_parts_are_parsed() {
        for topic in [
            &b""[..],
            b"kv@",
            b"kv@a",
            b"kv@@m",
            b"kv@a@",
            b"KV@a@m",
            b"kv@\xff@m",
        ] {
            assert_eq!(PodTopic::parse(topic), None, "{topic:?}");
        }
        assert_eq!(
            PodTopic::parse(b"kv@a@m@v2"),
            Some(PodTopic {
                pod: "a",
                model: "m@v2"
            })
        );
    }
}
