//! Identifies the service at a worker's address that does not answer as an engine. Runs only in
//! that case.

use std::time::Duration;

use http::StatusCode;
use net::{WorkerUrl, fetch::FetchError};
use serde_json::Value;
use tokio::io::AsyncReadExt;

use super::{Budget, engine_client::EngineClient};

/// Path that every engine has.
const MODELS: &str = "/v1/models";
/// Most folders of an address that are removed one by one to find the engine.
const MOST_FOLDERS: usize = 8;
/// Most models named, and the longest name among them, in bytes.
const MOST_MODELS: usize = 16;
const LONGEST_NAME: usize = 200;
/// First and last byte of a ZeroMQ greeting, with eight arbitrary bytes between them.
const GREETING: (u8, u8) = (0xff, 0x7f);
const GREETING_BYTES: usize = 10;

/// Service found in place of an engine's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortOccupant {
    /// A ZeroMQ socket, such as an event port.
    Zmtp,
    /// An engine, at this address.
    EngineAt(String),
    /// A web server that has no such path, here or in the folders above.
    NoSuchPath,
    /// A service that requires a key, or another key.
    Locked,
    /// An engine that lists these models, but none of the configured ones.
    OtherModels(Vec<String>),
}

/// Identifies the service. `None`: nothing explains the failure.
pub(crate) async fn identify_service(
    engine: &EngineClient,
    url: &WorkerUrl,
    budget: Budget,
) -> Option<PortOccupant> {
    if budget.is_spent() {
        return None;
    }
    match engine
        .status(url, MODELS, budget.at_most(budget.request))
        .await
    {
        Ok(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Some(PortOccupant::Locked),
        Ok(StatusCode::OK) => {
            let list = engine.get(MODELS, budget.at_most(budget.request)).await?;
            Some(listed(&list))
                .filter(|models| !models.is_empty())
                .map(PortOccupant::OtherModels)
        }
        Ok(StatusCode::NOT_FOUND) => Some(
            above(engine, url, budget)
                .await
                .unwrap_or(PortOccupant::NoSuchPath),
        ),
        Err(FetchError::Protocol { .. }) => {
            let limit = budget.at_most(budget.request);
            greets_as_zmtp(url, limit)
                .await
                .then_some(PortOccupant::Zmtp)
        }
        _ => None,
    }
}

/// Returns the first models of a list.
fn listed(list: &Value) -> Vec<String> {
    let entries = list["data"].as_array().into_iter().flatten();
    let ids = entries
        .filter_map(|entry| entry["id"].as_str())
        .filter(|id| id.len() <= LONGEST_NAME);
    ids.take(MOST_MODELS).map(str::to_owned).collect()
}

/// Searches the engine in the folders above, the nearest one first.
async fn above(engine: &EngineClient, url: &WorkerUrl, budget: Budget) -> Option<PortOccupant> {
    let mut base = url.base();
    for _ in 0..MOST_FOLDERS {
        base = &base[..base.rfind('/')?];
        let upper = format!("http://{}{base}", url.display_name())
            .parse::<WorkerUrl>()
            .ok()?
            .only_at(url.destinations());
        if budget.is_spent() {
            return None;
        }
        let status = engine
            .status(&upper, MODELS, budget.at_most(budget.request))
            .await
            .ok()?;
        if matches!(status, StatusCode::OK | StatusCode::UNAUTHORIZED) {
            return Some(PortOccupant::EngineAt(upper.to_string()));
        }
    }
    None
}

/// Detects a ZeroMQ socket: both sides of a ZeroMQ connection speak first.
async fn greets_as_zmtp(url: &WorkerUrl, limit: Duration) -> bool {
    let greeting = async {
        let mut stream = url
            .destinations()
            .connect(&url.address(), limit)
            .await
            .ok()?;
        let mut bytes = [0; GREETING_BYTES];
        stream.read_exact(&mut bytes).await.ok()?;
        Some((bytes[0], bytes[GREETING_BYTES - 1]))
    };
    tokio::time::timeout(limit, greeting).await.ok().flatten() == Some(GREETING)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Starts a server that sends this reply on every connection; returns its address.
    async fn serving(reply: impl Fn(&str) -> Vec<u8> + Send + 'static) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = [0; 1024];
                let n = stream.read(&mut head).await.unwrap_or(0);
                let line = String::from_utf8_lossy(&head[..n]).into_owned();
                let _ = stream
                    .write_all(&reply(line.split(' ').nth(1).unwrap_or_default()))
                    .await;
            }
        });
        format!("http://{address}")
    }

    fn status(code: &str) -> Vec<u8> {
        format!("HTTP/1.1 {code}\r\ncontent-length: 0\r\n\r\n").into_bytes()
    }

    async fn found(url: &str) -> Option<PortOccupant> {
        let url: WorkerUrl = url.parse().expect("a url");
        identify_service(
            &EngineClient::new(url.clone(), fleet::EngineKind::Generic, None),
            &url,
            Budget::of(PATIENCE),
        )
        .await
    }

    #[tokio::test]
    async fn an_engine_at_a_parent_path_is_found_and_named() {
        let engine = serving(|path| {
            status(if path == "/engine/v1/models" {
                "200 OK"
            } else {
                "404 Not Found"
            })
        })
        .await;
        let there = Some(PortOccupant::EngineAt(format!("{engine}/engine")));
        assert_eq!(found(&format!("{engine}/engine/v1")).await, there);
        assert_eq!(found(&format!("{engine}/engine/a/b")).await, there);
        assert_eq!(
            found(&format!("{engine}/other")).await,
            Some(PortOccupant::NoSuchPath)
        );
        assert_eq!(found(&engine).await, Some(PortOccupant::NoSuchPath));
    }

    #[tokio::test]
    async fn a_missing_key_and_a_missing_path_are_distinguished() {
        let engine = serving(|_| status("401 Unauthorized")).await;
        assert_eq!(found(&engine).await, Some(PortOccupant::Locked));
        let broken = serving(|_| status("500 Internal Server Error")).await;
        assert_eq!(found(&broken).await, None);
    }

    #[tokio::test]
    async fn a_model_list_and_other_json_are_distinguished() {
        let with = |body: &str| {
            format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
            .into_bytes()
        };
        let engine = serving(move |_| with(r#"{"data":[{"id":"a"},{"id":7},{"id":"b"}]}"#)).await;
        assert_eq!(
            found(&engine).await,
            Some(PortOccupant::OtherModels(vec![
                "a".to_owned(),
                "b".to_owned()
            ]))
        );
        for nothing in ["{}", "[]", r#"{"data":[]}"#, "<html>"] {
            let engine = serving(move |_| with(nothing)).await;
            assert_eq!(found(&engine).await, None, "{nothing}");
        }
    }

    #[tokio::test]
    async fn a_port_of_another_protocol_gives_no_result() {
        let silent = serving(|_| b"220 mail\r\n".to_vec()).await;
        assert_eq!(found(&silent).await, None);
    }

    #[tokio::test]
    async fn a_publisher_is_recognized_by_its_greeting() {
        let any = "tcp://127.0.0.1:0".parse().expect("an endpoint");
        let (publisher, endpoint) = zmtp::Pub::bind(&any, zmtp::PubSettings::default())
            .await
            .expect("a free port");
        let port = endpoint.port().expect("tcp has one");
        assert_eq!(
            found(&format!("http://127.0.0.1:{port}")).await,
            Some(PortOccupant::Zmtp)
        );
        publisher.close(Duration::ZERO).await;
    }
}
