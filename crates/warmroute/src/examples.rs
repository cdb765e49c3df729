//! Commands that try a running router: a request, and the decision about it explained.

use std::{fmt::Write as _, net::IpAddr, path::PathBuf};

use config::{ListenerTls, Settings};
use fleet::Snapshot;
use kv_blocks::Role;
use net::{Address, ListenAddr};

/// Prompt of both commands.
const PROMPT: &str = "Hello";
/// Stands for the model while none is known.
const ANY_MODEL: &str = "MODEL";

/// The settings that the commands depend on.
#[derive(Debug)]
pub(crate) struct Examples {
    program: String,
    data_tls: Option<ListenerTls>,
    admin_tls: bool,
    admin_token_file: Option<PathBuf>,
    /// Whether clients must send a key.
    key: bool,
}

impl Examples {
    /// `program`: its name as typed, so that a copy runs the same program.
    pub(crate) fn of(program: String, settings: &Settings, key: bool) -> Self {
        Self {
            program,
            data_tls: settings.server.tls.clone(),
            admin_tls: settings.admin.tls.is_some(),
            admin_token_file: settings.admin.token_file.clone(),
            key,
        }
    }

    /// Returns both commands, each on one line.
    pub(crate) fn commands(
        &self,
        data: &ListenAddr,
        admin: &ListenAddr,
        model: Option<&str>,
    ) -> [String; 2] {
        // A control character would end the line, or change the terminal.
        let model = model.filter(|model| !model.contains(char::is_control));
        [self.request(data, model), self.explain(admin, model)]
    }

    fn request(&self, data: &ListenAddr, model: Option<&str>) -> String {
        let scheme = if self.data_tls.is_some() {
            "https"
        } else {
            "http"
        };
        let (socket, host) = match data.address() {
            Address::Unix(path) => (Some(path), "localhost".to_owned()),
            tcp @ Address::Tcp { .. } => (None, reachable(tcp).to_string()),
        };
        let mut command = "curl".to_owned();
        if let Some(path) = socket {
            let _ = write!(command, " --unix-socket {}", word(&path.to_string_lossy()));
        }
        if let Some(tls) = &self.data_tls {
            // The certificate need not name the address that the router listens on.
            command += " --insecure";
            if tls.client_ca.is_some() {
                command += " --cert CERTIFICATE --key KEY";
            }
        }
        let _ = write!(
            command,
            " {}",
            word(&format!("{scheme}://{host}/v1/chat/completions"))
        );
        if self.key {
            command += " -H \"authorization: Bearer $WARMROUTE_API_KEY\"";
        }
        let model = serde_json::Value::from(model.unwrap_or(ANY_MODEL));
        let body =
            format!(r#"{{"model":{model},"messages":[{{"role":"user","content":"{PROMPT}"}}]}}"#);
        let body = word(&body);
        command + " -H 'content-type: application/json' -d " + &body
    }

    fn explain(&self, admin: &ListenAddr, model: Option<&str>) -> String {
        let url = match admin.address() {
            unix @ Address::Unix(_) => unix.to_string(),
            tcp @ Address::Tcp { .. } => {
                let scheme = if self.admin_tls { "https" } else { "http" };
                format!("{scheme}://{}", reachable(tcp))
            }
        };
        let mut command = format!("{} explain --url {}", word(&self.program), word(&url));
        if let Some(path) = &self.admin_token_file {
            let _ = write!(
                command,
                " --admin-token-file {}",
                word(&path.to_string_lossy())
            );
        }
        if let Some(model) = model {
            let _ = write!(command, " --model {}", word(model));
        }
        command + " --prompt " + &word(PROMPT)
    }
}

/// Returns the model of the first ready worker that generates.
pub(crate) fn model(snapshot: &Snapshot) -> Option<&str> {
    let mut ready = snapshot
        .workers
        .iter()
        .filter(|worker| worker.is_ready() && worker.role != Role::Prefill);
    ready.find_map(|worker| worker.served.models.first().map(|model| &*model.id))
}

/// Returns an address that clients on this machine can connect to.
fn reachable(address: &Address) -> Address {
    match address {
        Address::Tcp { host, port } => {
            let host = match host.parse() {
                Ok(IpAddr::V4(ip)) if ip.is_unspecified() => "127.0.0.1".to_owned(),
                Ok(IpAddr::V6(ip)) if ip.is_unspecified() => "::1".to_owned(),
                _ => host.clone(),
            };
            Address::Tcp { host, port: *port }
        }
        unix => unix.clone(),
    }
}

/// Returns a text as one word of a POSIX shell.
fn word(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@%+=,".contains(letter);
    if !text.is_empty() && !text.starts_with('=') && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Examples {
        Examples {
            program: "warmroute".to_owned(),
            data_tls: None,
            admin_tls: false,
            admin_token_file: None,
            key: false,
        }
    }

    fn commands(examples: &Examples, data: &str, admin: &str, model: Option<&str>) -> [String; 2] {
        let address = |text: &str| text.parse::<ListenAddr>().expect("an address");
        examples.commands(&address(data), &address(admin), model)
    }

    #[test]
    fn both_commands_are_complete_for_the_plain_case() {
        let [request, explain] = commands(
            &examples(),
            "127.0.0.1:8080",
            "127.0.0.1:9191",
            Some("Qwen/Qwen3-8B"),
        );
        assert_eq!(
            request,
            "curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' -d \
             '{\"model\":\"Qwen/Qwen3-8B\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'"
        );
        assert_eq!(
            explain,
            "warmroute explain --url http://127.0.0.1:9191 --model Qwen/Qwen3-8B --prompt Hello"
        );
    }

    #[test]
    fn an_unknown_model_is_a_placeholder_and_left_to_the_router() {
        for model in [None, Some("a\nb"), Some("\u{1b}[2J")] {
            let [request, explain] =
                commands(&examples(), "127.0.0.1:8080", "127.0.0.1:9191", model);
            assert!(request.contains("\"model\":\"MODEL\""), "{request}");
            assert!(!explain.contains("--model"), "{explain}");
        }
    }

    #[test]
    fn an_address_of_all_interfaces_becomes_one_to_connect_to() {
        for (listen, url) in [
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:80", "'http://[::1]:80"),
            ("10.0.0.5:80", "http://10.0.0.5:80"),
        ] {
            let [request, explain] = commands(&examples(), listen, listen, None);
            assert!(request.starts_with(&format!("curl {url}")), "{request}");
            assert!(explain.contains(&format!("--url {url}")), "{explain}");
        }
    }

    #[test]
    fn sockets_keys_tokens_and_certificates_are_in_the_commands_and_no_secret_is() {
        let protected = Examples {
            data_tls: Some(ListenerTls {
                cert: "/c".into(),
                key: "/k".into(),
                client_ca: Some("/ca".into()),
                client_crl: None,
                client_names: Vec::new(),
            }),
            admin_tls: true,
            admin_token_file: Some("/run/my token".into()),
            key: true,
            ..examples()
        };
        let [request, explain] = commands(&protected, "unix:/run/w r.sock", "127.0.0.1:1", None);
        for part in [
            "curl --unix-socket '/run/w r.sock' --insecure --cert CERTIFICATE --key KEY https://localhost/v1/",
            " -H \"authorization: Bearer $WARMROUTE_API_KEY\" ",
        ] {
            assert!(request.contains(part), "{request}");
        }
        assert!(
            explain.contains("--url https://127.0.0.1:1 --admin-token-file '/run/my token' "),
            "{explain}"
        );
        let [_, explain] = commands(&protected, "127.0.0.1:1", "unix:/run/admin.sock", None);
        assert!(
            explain.contains(" --url unix:/run/admin.sock "),
            "{explain}"
        );
    }

    #[test]
    fn a_shell_reads_each_word_as_it_was() {
        for text in [
            "a",
            "",
            "it's",
            "a b",
            "$HOME `x` \"y\" \\",
            "=x",
            "é;&|<>*?[]{}~#!",
        ] {
            let line = format!("printf %s {}", word(text));
            let output = std::process::Command::new("sh")
                .args(["-c", &line])
                .output()
                .expect("a shell");
            assert_eq!(String::from_utf8_lossy(&output.stdout), text, "{line}");
        }
    }
}
