//! The place of a span in its trace, and its form in the header `traceparent`.

use std::{fmt, num::NonZeroU64};

/// The id of a trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId([u64; 2]);

impl TraceId {
    /// Returns the bytes of the id, most significant first.
    pub fn to_bytes(self) -> [u8; 16] {
        let [high, low] = self.0.map(u128::from);
        (high << 64 | low).to_be_bytes()
    }
}

/// The id of a span; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(NonZeroU64);

impl SpanId {
    /// Returns an id from a random number.
    pub fn new(random: u64) -> Self {
        Self(NonZeroU64::new(random).unwrap_or(NonZeroU64::MIN))
    }

    /// Returns the bytes of the id, most significant first.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

/// The place of a span in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// Whether the spans of the trace are recorded.
    pub sampled: bool,
}

/// Length of a header of version 00; a later version may append fields.
const LENGTH: usize = 55;

impl SpanContext {
    /// Returns the first span of a new trace, with ids from three random numbers. `sample_ratio`:
    /// the share of traces that are sampled.
    pub fn root(random: [u64; 3], sample_ratio: f64) -> Self {
        let [high, low, span] = random;
        // 53 bits of the id as a number from 0 to 1, so that routers that get the same id agree.
        let position = (low >> 11) as f64 / (1u64 << 53) as f64;
        Self {
            trace: TraceId([high.max(1), low]),
            span: SpanId::new(span),
            sampled: position < sample_ratio,
        }
    }

    /// Returns another span of the same trace.
    #[must_use]
    pub fn with_span(self, span: SpanId) -> Self {
        Self { span, ..self }
    }

    /// Parses a `traceparent`; `None` if it is invalid.
    ///
    /// ```
    /// let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// let context = otlp::SpanContext::parse(parent).expect("a valid header");
    /// assert!(context.sampled);
    /// assert_eq!(context.to_string(), parent);
    /// ```
    pub fn parse(header: &str) -> Option<Self> {
        let (known, later) = header.split_at_checked(LENGTH)?;
        let mut fields = known.split('-');
        let mut field = |digits| fields.next().filter(|text| is_hex(text, digits));
        let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let is_whole = match version {
            "ff" => false,
            "00" => later.is_empty(),
            _ => later.is_empty() || later.starts_with('-'),
        };
        let (high, low) = trace.split_at_checked(16)?;
        let trace = [number(high)?, number(low)?];
        let span = NonZeroU64::new(number(span)?)?;
        let flags = u8::from_str_radix(flags, 16).ok()?;
        (is_whole && trace != [0, 0]).then_some(Self {
            trace: TraceId(trace),
            span: SpanId(span),
            sampled: flags & 1 == 1,
        })
    }
}

fn number(hex: &str) -> Option<u64> {
    u64::from_str_radix(hex, 16).ok()
}

/// Returns whether a text is this many lower-case hex digits.
fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The value of a `traceparent`.
impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([high, low], flags) = (self.trace.0, u8::from(self.sampled));
        write!(
            f,
            "00-{high:016x}{low:016x}-{:016x}-{flags:02x}",
            self.span.0
        )
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    #[contract("V44")]
    fn a_valid_traceparent_gives_trace_span_and_sampled_flag() {
        for (version, flags, more, sampled) in [
            ("00", "01", "", true),
            ("00", "00", "", false),
            // Other flags are those of later versions.
            ("00", "02", "", false),
            ("00", "ff", "", true),
            ("01", "01", "", true),
            ("fe", "01", "-later", true),
        ] {
            let header = format!("{version}-{TRACE}-{SPAN}-{flags}{more}");
            let context = SpanContext::parse(&header).unwrap_or_else(|| panic!("{header}"));
            assert_eq!(context.sampled, sampled, "{header}");
            let sent = format!("00-{TRACE}-{SPAN}-0{}", u8::from(sampled));
            assert_eq!(context.to_string(), sent, "{header}");
        }
    }

    #[test]
    #[contract("V44")]
    fn an_invalid_traceparent_is_refused() {
        let zero = "0".repeat(32);
        for header in [
            String::new(),
            "00".to_owned(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-01 "),
            format!("01-{TRACE}-{SPAN}-01more"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1-"),
            format!("00-{TRACE}-{SPAN}-0x"),
            format!("00-{TRACE}-{SPAN}-+1"),
            format!("00-{zero}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{SPAN}-{TRACE}-01"),
            format!("0-0{TRACE}-{SPAN}-01"),
            // A character of several bytes across the end of the known fields.
            format!("00-{TRACE}-{SPAN}-0\u{20ac}"),
        ] {
            assert_eq!(SpanContext::parse(&header), None, "{header:?}");
        }
    }

    #[test]
    fn the_share_of_sampled_traces_is_the_ratio_and_depends_on_the_trace_id_alone() {
        let sampled = |ratio: f64| {
            let step = u64::MAX / 1000;
            (0..1000)
                .filter(|n| {
                    let one = SpanContext::root([7, n * step + step / 2, 1], ratio);
                    assert_eq!(
                        one.sampled,
                        SpanContext::root([8, n * step + step / 2, 9], ratio).sampled
                    );
                    one.sampled
                })
                .count()
        };
        assert_eq!([0.0, 0.01, 0.5, 1.0].map(sampled), [0, 10, 500, 1000]);
    }

    #[test]
    fn ids_are_never_zero_and_a_child_stays_in_its_trace() {
        let root = SpanContext::root([0, 0, 0], 1.0);
        assert_eq!(SpanContext::parse(&root.to_string()), Some(root));
        let child = root.with_span(SpanId::new(5));
        assert_eq!((child.trace, child.sampled), (root.trace, true));
        assert_eq!(child.span.to_bytes(), 5u64.to_be_bytes());
        assert_ne!(SpanId::new(0).to_bytes(), [0; 8]);
    }
}
