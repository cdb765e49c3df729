//! Checks URLs of workers by their shape.

/// Checks a worker's URL, also one of a Unix socket.
pub(super) fn any_url(url: &str) -> Result<String, String> {
    match url.strip_prefix("unix://") {
        Some(path) if path.starts_with('/') && path.len() > 1 && is_plain(path) => {
            Ok(path.to_owned())
        }
        Some(_) => Err(format!("`{url}` is not unix:///PATH")),
        None => http_url(url),
    }
}

/// Checks the URL of a worker that transfers KV caches: others must reach its host.
pub(super) fn pool_url(url: &str) -> Result<String, String> {
    if url.starts_with("unix:") {
        return Err(format!(
            "`{url}` is a Unix socket, which a prefill or decode worker cannot be behind"
        ));
    }
    http_url(url)
}

/// Checks only the shape: `config check` reports details on the converted file.
fn http_url(url: &str) -> Result<String, String> {
    let refuse = || format!("`{url}` is not a URL of a worker");
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
        .ok_or_else(refuse)?;
    let host_port = rest.split('/').next().unwrap_or_default();
    let (host, port) = match host_port.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
        _ => (host_port, Some(80)),
    };
    let port_fits = port.is_some_and(|port: u16| port > 0);
    if port_fits && !host.is_empty() && is_plain(rest) {
        Ok(host_port.to_owned())
    } else {
        Err(refuse())
    }
}

fn is_plain(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_graphic() && !b"{}<>\"\\^`|".contains(&byte))
}
