//! How many bytes of bodies are held at once.

use contract_id::contract;

use crate::{
    fleet::{CHAT, Scripted, fine},
    harness::{RawClient, Reply, Router as _, chat, eventually},
};

const MIB: u64 = 1 << 20;

fn head(framing: &str) -> Vec<u8> {
    format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n").into_bytes()
}

fn is_refused(client: &mut RawClient) {
    let reply = client.reply();
    assert_eq!((reply.status, reply.error_code().as_str()), (503, "overloaded"));
    assert!(reply.header("retry-after").is_some());
    assert!(reply.text().contains("server.max_held_bytes"), "{}", reply.text());
}

#[test]
#[contract("F76", "I7")]
fn bodies_beyond_what_may_be_held_are_refused_before_they_are_sent() {
    let scripted = Scripted::one(Reply::whole(fine()), "server: {max_body_bytes: 1MiB, max_held_bytes: 2MiB}\n");
    let data = scripted.router.data();
    let held = || scripted.router.metric("warmroute_held_body_bytes", "");
    let mut announced: Vec<_> = (0..2).map(|_| RawClient::connect(&data)).collect();
    announced.iter_mut().for_each(|client| client.send_bytes(&head(&format!("content-length: {MIB}"))));
    eventually("the announced bytes to count", || (held() == (2 * MIB) as f64).then_some(()));

    // One that waits to be asked for its body is not asked.
    let mut waits = RawClient::connect(&data);
    waits.send_bytes(&head("content-length: 20\r\nexpect: 100-continue"));
    is_refused(&mut waits);
    let mut grows = RawClient::connect(&data);
    grows.send_bytes(&head("transfer-encoding: chunked"));
    grows.send_bytes(b"1\r\n{\r\n");
    is_refused(&mut grows);
    assert_eq!(RawClient::get(&data, "/v1/models").status, 200, "what has no body is served");
    assert_eq!(held(), (2 * MIB) as f64);
    assert_eq!(scripted.router.metric("warmroute_shed_total", "reason=\"held_bytes\""), 2.0);

    announced.pop();
    eventually("room again", || (scripted.post(&chat("m", "hi", 1)).status == 200).then_some(()));
    drop(announced);
    scripted.router.settled();
}

#[test]
#[contract("F76")]
fn bodies_of_untold_length_count_as_they_grow() {
    let scripted = Scripted::one(Reply::whole(fine()), "server: {max_body_bytes: 1MiB, max_held_bytes: 1MiB}\n");
    let data = scripted.router.data();
    let piece = vec![b' '; 400 << 10];
    let grown = |data: &str| {
        let mut client = RawClient::connect(data);
        client.send_bytes(&head("transfer-encoding: chunked"));
        client.send_bytes(&crate::harness::chunk(&piece));
        client
    };
    let first = [grown(&data), grown(&data)];
    eventually("both to count", || {
        (scripted.router.metric("warmroute_held_body_bytes", "") == (800 << 10) as f64).then_some(())
    });
    is_refused(&mut grown(&data));
    drop(first);
    scripted.router.settled();
}
