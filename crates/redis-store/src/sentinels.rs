//! Redis Sentinel: the primary is the server that sentinels name at the moment.
//!
//! All sentinels are asked at once, for each new connection, and their answers are tried in the
//! order of their arrival: one that has not noticed a failover yet names a server that does not
//! answer, or that says itself that it is no primary.

use config::RedisAddress;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use redis::{Pipeline, Value};

use crate::{
    RedisFault,
    connection::{MOST_ANSWER, RedisConnection, RedisDialer},
    fault::cut,
};

/// The sentinels of one primary.
#[derive(Debug)]
pub(crate) struct Sentinels {
    addresses: Vec<RedisAddress>,
    /// The primary's name in their configuration.
    name: String,
}

impl Sentinels {
    pub(crate) fn new(addresses: &[RedisAddress], name: &str) -> Self {
        Self {
            addresses: addresses.to_vec(),
            name: name.to_owned(),
        }
    }

    /// Opens a connection to the primary.
    pub(crate) async fn connect(
        &self,
        dialer: &RedisDialer,
    ) -> Result<RedisConnection, RedisFault> {
        // Bound: the sentinels of the URL, at most 16.
        let asked = self
            .addresses
            .iter()
            .map(|sentinel| self.ask(dialer, sentinel));
        let mut answers: FuturesUnordered<_> = asked.collect();
        let mut tried: Vec<RedisAddress> = Vec::new();
        let mut last = RedisFault::no_primary("the URL has no sentinel");
        while let Some(answer) = answers.next().await {
            let address = match answer {
                Ok(address) if tried.contains(&address) => continue,
                Ok(address) => address,
                Err(fault) if tried.is_empty() => {
                    last = RedisFault::no_primary(&fault.reason);
                    continue;
                }
                Err(_) => continue,
            };
            match connect_to_primary(dialer, &address).await {
                Ok(connection) => return Ok(connection),
                Err(fault) => last = fault,
            }
            tried.push(address);
        }
        Err(last)
    }

    /// Asks one sentinel for the primary.
    async fn ask(
        &self,
        dialer: &RedisDialer,
        sentinel: &RedisAddress,
    ) -> Result<RedisAddress, RedisFault> {
        let mut connection = dialer.connect_to_sentinel(sentinel).await?;
        let mut question = Pipeline::new();
        question
            .ignore_errors()
            .cmd("SENTINEL")
            .arg("get-master-addr-by-name")
            .arg(&self.name);
        let answers = connection.send(&question, MOST_ANSWER).await?;
        match &answers[..] {
            [Value::Array(address)] => address_of(address)
                .ok_or_else(|| RedisFault::no_primary("an answer that is no address")),
            [Value::ServerError(error)] => Err(RedisFault::from(&error.clone().into())),
            _ => {
                let reason = format!("{sentinel} knows no primary {:?}", self.name);
                Err(RedisFault::no_primary(&reason))
            }
        }
    }
}

/// Opens a connection to a server that says itself that it is the primary.
async fn connect_to_primary(
    dialer: &RedisDialer,
    address: &RedisAddress,
) -> Result<RedisConnection, RedisFault> {
    let mut connection = dialer.connect_as_user(address).await?;
    let mut question = Pipeline::new();
    question.ignore_errors().cmd("ROLE");
    let answers = connection.send(&question, MOST_ANSWER).await?;
    match role(&answers).as_deref() {
        // The account may lack the right to ask.
        None | Some("master") => Ok(connection),
        Some(role) => Err(RedisFault::demoted(&cut(role))),
    }
}

/// Returns whether an answer is that of a server which was the primary before.
pub(crate) fn is_of_replica(answers: &[Value]) -> bool {
    answers.iter().any(|answer| match answer {
        Value::ServerError(error) => error.code() == "READONLY",
        _ => false,
    })
}

fn role(answers: &[Value]) -> Option<String> {
    match answers {
        [Value::Array(parts)] => text(parts.first()?),
        _ => None,
    }
}

fn address_of(parts: &[Value]) -> Option<RedisAddress> {
    let [host, port] = parts else { return None };
    let host = text(host).filter(|host| !host.is_empty() && host.len() <= 253)?;
    let port = text(port)?.parse().ok().filter(|port| *port > 0)?;
    Some(RedisAddress { host, port })
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn an_answer_is_an_address_only_in_the_form_of_a_sentinel() {
        let address = address_of(&[bulk("10.0.0.7"), bulk("6379")]).expect("an address");
        assert_eq!(address.to_string(), "10.0.0.7:6379");
        for parts in [
            &[][..],
            &[bulk("h")],
            &[bulk("h"), bulk("0")],
            &[bulk("h"), bulk("65536")],
            &[bulk(""), bulk("1")],
            &[bulk("h"), Value::Nil],
        ] {
            assert_eq!(address_of(parts), None, "{parts:?}");
        }
    }

    #[test]
    fn a_role_is_the_first_word_of_its_answer() {
        let replica = Value::Array(vec![bulk("slave"), bulk("h"), Value::Int(1)]);
        assert_eq!(role(&[replica]).as_deref(), Some("slave"));
        assert_eq!(role(&[Value::Nil]), None);
    }
}
