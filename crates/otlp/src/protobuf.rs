//! Spans as the protobuf message of an export.

use bytes::Bytes;
use kv_blocks::Moment;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue, any_value::Value},
    resource::v1::Resource,
    trace::v1::{self as message, ResourceSpans, ScopeSpans, Status, span, status::StatusCode},
};
use prost::Message;

use crate::{AttributeValue, Attributes, Span, SpanEvent, SpanKind};

/// The name of the service and of the instrumentation.
const NAME: &str = "warmroute";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Encodes the spans of one process.
#[derive(Debug)]
pub(crate) struct Encoder {
    resource: Resource,
}

impl Encoder {
    /// Creates the encoder of the process with this id.
    pub(crate) fn new(instance: u64) -> Self {
        let attributes = [
            ("service.name", NAME.to_owned()),
            ("service.version", VERSION.to_owned()),
            ("service.instance.id", format!("{instance:016x}")),
        ];
        Self {
            resource: Resource {
                attributes: attributes.map(|(name, text)| key_value(name, text)).into(),
                ..Resource::default()
            },
        }
    }

    /// Returns the body of an export; `start`: nanoseconds since 1970 at [`Moment::START`].
    pub(crate) fn encode(&self, spans: &[Span], start: u64) -> Bytes {
        let spans = spans.iter().map(|span| self::span(span, start)).collect();
        let scope = InstrumentationScope {
            name: NAME.to_owned(),
            version: VERSION.to_owned(),
            ..InstrumentationScope::default()
        };
        let resource_spans = ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope),
                spans,
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        };
        let request = ExportTraceServiceRequest {
            resource_spans: vec![resource_spans],
        };
        request.encode_to_vec().into()
    }
}

/// Returns the number of spans that the collector rejected in a reply of success.
pub(crate) fn rejected(reply: Bytes) -> usize {
    let reply = ExportTraceServiceResponse::decode(reply).unwrap_or_default();
    let rejected = reply.partial_success.map(|partial| partial.rejected_spans);
    rejected
        .and_then(|spans| usize::try_from(spans).ok())
        .unwrap_or(0)
}

fn span(span: &Span, start: u64) -> message::Span {
    let Span {
        context,
        parent,
        name,
        kind,
        ..
    } = span;
    let kind = match kind {
        SpanKind::Server => span::SpanKind::Server,
        SpanKind::Client => span::SpanKind::Client,
        SpanKind::Internal => span::SpanKind::Internal,
    };
    message::Span {
        trace_id: context.trace.to_bytes().into(),
        span_id: context.span.to_bytes().into(),
        parent_span_id: parent.map_or_else(Vec::new, |parent| parent.to_bytes().into()),
        flags: u32::from(context.sampled),
        name: name.clone().into_owned(),
        kind: kind.into(),
        start_time_unix_nano: unix_nanos(span.start, start),
        end_time_unix_nano: unix_nanos(span.end, start),
        attributes: attributes(&span.attributes),
        events: span.events.iter().map(|it| event(it, start)).collect(),
        status: span.failed.then(|| Status {
            code: StatusCode::Error.into(),
            message: String::new(),
        }),
        ..message::Span::default()
    }
}

fn event(event: &SpanEvent, start: u64) -> span::Event {
    span::Event {
        time_unix_nano: unix_nanos(event.at, start),
        name: event.name.to_owned(),
        attributes: attributes(&event.attributes),
        dropped_attributes_count: 0,
    }
}

fn unix_nanos(at: Moment, start: u64) -> u64 {
    let since = u64::try_from(at.since_start().as_nanos()).unwrap_or(u64::MAX);
    start.saturating_add(since)
}

fn attributes(attributes: &Attributes) -> Vec<KeyValue> {
    let pair = |(name, value): &(&'static str, AttributeValue)| KeyValue {
        value: Some(any_value(value)),
        ..key_value(name, String::new())
    };
    attributes.iter().map(pair).collect()
}

fn key_value(name: &str, text: String) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue {
            value: Some(Value::StringValue(text)),
        }),
        ..KeyValue::default()
    }
}

fn any_value(value: &AttributeValue) -> AnyValue {
    let value = match value {
        AttributeValue::Text(text) => Value::StringValue(text.clone()),
        AttributeValue::TextList(text) => Value::ArrayValue(ArrayValue {
            values: vec![any_value(&AttributeValue::Text(text.clone()))],
        }),
        AttributeValue::Int(number) => Value::IntValue(*number),
        AttributeValue::Float(number) => Value::DoubleValue(*number),
    };
    AnyValue { value: Some(value) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use contract_id::contract;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;
    use crate::{SpanId, queue::tests::span as plain_span};

    #[test]
    #[contract("V44")]
    fn a_span_is_encoded_with_ids_times_attributes_events_and_status() {
        let mut attributes = Attributes::default();
        attributes.add("text", "a");
        attributes.add("list", AttributeValue::text_list("b"));
        attributes.add("int", 3u32);
        attributes.add("float", 0.5);
        let parent = plain_span(5);
        let whole = Span {
            context: parent.context.with_span(SpanId::new(6)),
            parent: Some(parent.context.span),
            name: "whole".into(),
            kind: SpanKind::Client,
            start: Moment::at(Duration::from_nanos(10)),
            end: Moment::at(Duration::from_nanos(30)),
            events: vec![SpanEvent {
                name: "event",
                at: Moment::at(Duration::from_nanos(20)),
                attributes: attributes.clone(),
            }],
            attributes,
            failed: true,
        };
        let body = Encoder::new(7).encode(&[parent, whole], 1000);
        let mut request = ExportTraceServiceRequest::decode(body).expect("the message");
        let resource_spans = request.resource_spans.remove(0);
        let resource = resource_spans.resource.expect("a resource").attributes;
        assert_eq!(resource[0], key_value("service.name", "warmroute".into()));
        assert_eq!(
            resource[2],
            key_value("service.instance.id", "0000000000000007".into())
        );
        let spans = &resource_spans.scope_spans[0].spans;
        let (parent, whole) = (&spans[0], &spans[1]);
        assert_eq!(
            parent.trace_id,
            [[0, 0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0, 2]].concat()
        );
        assert_eq!(parent.span_id, [0, 0, 0, 0, 0, 0, 0, 5]);
        assert!(parent.parent_span_id.is_empty() && parent.status.is_none());
        assert_eq!(
            (&whole.trace_id, &whole.parent_span_id),
            (&parent.trace_id, &parent.span_id)
        );
        assert_eq!(
            (&*whole.name, whole.kind(), whole.flags),
            ("whole", span::SpanKind::Client, 1)
        );
        assert_eq!(
            (whole.start_time_unix_nano, whole.end_time_unix_nano),
            (1010, 1030)
        );
        assert_eq!(
            whole.status.as_ref().map(Status::code),
            Some(StatusCode::Error)
        );
        assert_eq!(
            (&*whole.events[0].name, whole.events[0].time_unix_nano),
            ("event", 1020)
        );
        assert_eq!(whole.events[0].attributes, whole.attributes);
        let text = |text: &str| Value::StringValue(text.to_owned());
        let list = ArrayValue {
            values: vec![AnyValue {
                value: Some(text("b")),
            }],
        };
        let expected = [
            ("text", text("a")),
            ("list", Value::ArrayValue(list)),
            ("int", Value::IntValue(3)),
            ("float", Value::DoubleValue(0.5)),
        ];
        let value = |it: &KeyValue| it.value.clone().and_then(|value| value.value);
        let found: Vec<_> = whole
            .attributes
            .iter()
            .map(|it| (&*it.key, value(it)))
            .collect();
        assert_eq!(found, expected.map(|(name, value)| (name, Some(value))));
    }

    #[test]
    fn the_spans_that_a_collector_rejects_are_counted() {
        let reply = |rejected_spans| {
            let partial_success = Some(ExportTracePartialSuccess {
                rejected_spans,
                error_message: String::new(),
            });
            ExportTraceServiceResponse { partial_success }.encode_to_vec()
        };
        let counts =
            [reply(3), reply(-1), Vec::new(), b"{}".to_vec()].map(|it| rejected(it.into()));
        assert_eq!(counts, [3, 0, 0, 0]);
    }
}
