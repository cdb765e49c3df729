//! What happens to published messages.

use bytes::Bytes;
use event_log::{LogBatch, LogDelivery, LogMember, LogMessage, StreamRole};

use super::{NatsServer, start, until};

fn batch(seq: u64, bytes: usize) -> LogMessage {
    LogMessage::Batch(LogBatch {
        seq,
        previous: None,
        payload: Bytes::from(vec![0; bytes]),
    })
}

#[tokio::test]
async fn a_message_reaches_the_follower_in_order_and_one_that_is_too_large_is_dropped() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let (a, b) = (start(&server, "a"), start(&server, "b"));
    let members = [a.join("w", 0), b.join("w", 0)];
    members.iter().for_each(LogMember::set_past_read);
    let role = |index: usize, role| members[index].role() == role;
    until("an owner and a follower", || {
        role(0, StreamRole::Owner) && role(1, StreamRole::Follower)
            || role(1, StreamRole::Owner) && role(0, StreamRole::Follower)
    })
    .await;
    let owner = usize::from(role(1, StreamRole::Owner));
    for message in [batch(0, 10), batch(1, 2 << 20), batch(2, 10)] {
        members[owner].publish(message);
    }
    for seq in [0, 2] {
        let delivery = members[1 - owner].next().await;
        assert_eq!(delivery, LogDelivery::Message(batch(seq, 10)));
    }
    // The server may acknowledge a message after the follower has it.
    until("the counts", || {
        let counts = [a.report(), b.report()][owner].counts;
        (counts.published, counts.dropped) == (2, 1)
    })
    .await;
    until("the acknowledgement", || {
        assert_eq!(members[1 - owner].try_next(), None);
        a.acknowledged_by_all() == 2
    })
    .await;
}

#[tokio::test]
async fn what_was_published_while_the_server_was_away_is_published_once_later() {
    test_programs::require!(NatsServer);
    let mut server = NatsServer::start_with_store();
    let log = start(&server, "a");
    let member = log.join("w", 0);
    until("the owner", || member.role() == StreamRole::Owner).await;
    member.publish(batch(0, 10));
    until("the first", || log.report().counts.published == 1).await;
    server.kill();
    until("the loss", || member.role() == StreamRole::Alone).await;
    member.publish(batch(1, 10));
    server.start_again();
    until("the second", || log.report().counts.published == 2).await;
    member.publish(batch(1, 10));
    until("a duplicate", || log.report().counts.duplicates == 1).await;
    assert_eq!(log.report().counts.dropped, 0);
}

#[tokio::test]
async fn a_farewell_frees_the_streams_at_once() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let a = start(&server, "a");
    let of_a = a.join("w", 0);
    until("the owner", || of_a.role() == StreamRole::Owner).await;
    let b = start(&server, "b");
    let of_b = b.join("w", 0);
    until("the follower", || of_b.role() == StreamRole::Follower).await;
    drop(of_a);
    a.leave().await;
    until("the next owner", || of_b.role() == StreamRole::Owner).await;
}
