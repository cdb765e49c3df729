//! Engine priority: the queue's order, without the shares of tenants, as a number in the request, for
//! engines that schedule by it.

use bytes::Bytes;
use dialect::Edit;

/// The entry in the rewrites header; also the member's name.
pub(super) const REWRITE: &str = "priority";

/// Adds the request's number to the body; `None` if it cannot be spliced: it is then sent
/// unchanged.
pub(super) fn add_priority(body: &Bytes, priority: i64) -> Option<Bytes> {
    dialect::splice(body, &[Edit::Set(REWRITE, &priority.to_string())])
        .map(Bytes::from)
        .ok()
}

#[cfg(test)]
mod tests {
    use fleet::EngineKind;
    use proxy::FakeReply;

    use super::*;
    use crate::request::{send::PriorityField, test_gateway::TestGateway, test_support};

    #[test]
    fn the_number_is_added_or_replaced_and_every_other_byte_stays() {
        let add = |body: &'static str| {
            let spliced = add_priority(&Bytes::from_static(body.as_bytes()), -5);
            spliced.map(|body| String::from_utf8_lossy(&body).into_owned())
        };
        let added = add(r#"{ "model":"m" }"#).expect("an object");
        assert!(added.starts_with(r#"{ "model":"m""#), "{added}");
        assert!(added.contains(r#""priority":-5"#), "{added}");
        let replaced = add(r#"{"priority": 3,"model":"m"}"#).expect("an object");
        assert_eq!(replaced.matches("priority").count(), 1, "{replaced}");
        assert!(replaced.contains("-5"), "{replaced}");
        assert_eq!(add("[1]"), None);
    }

    #[tokio::test]
    async fn only_vllm_workers_get_it_where_it_is_on_and_the_client_sets_none() {
        let vllm = test_support::worker(1);
        let mut sglang = test_support::worker(1);
        sglang.engine.kind = EngineKind::Sglang;
        for (enabled, field, worker, gets_it) in [
            (true, PriorityField::Free, &vllm, true),
            (true, PriorityField::Taken, &vllm, false),
            (false, PriorityField::Free, &vllm, false),
            (true, PriorityField::Free, &sglang, false),
        ] {
            let mut test = TestGateway::new();
            test.delivery_mut().send.queue.engine_priority = enabled;
            test.script(1, FakeReply::json(200, "{}"));
            let mut request = test.chat_for(vec![worker.clone()]);
            request.priority = field;
            let (reply, receipt) = test.deliver(request).await;
            let sent = test.upstream.take_requests().pop().expect("it is sent");
            let body = String::from_utf8_lossy(sent.body()).into_owned();
            assert_eq!(body.contains("priority"), gets_it, "{body}");
            assert_eq!(receipt.rewrites.contains(&REWRITE), gets_it);
            let shown = reply.headers.get("x-warmroute-rewrites");
            assert_eq!(shown.is_some_and(|shown| shown == REWRITE), gets_it);
        }
    }
}
