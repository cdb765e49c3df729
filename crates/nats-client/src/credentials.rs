//! Credentials for a NATS server.

use std::{fmt, str::FromStr};

use async_nats::ConnectOptions;

/// Longest text that can be credentials, bytes.
const MAX_TEXT: usize = 64 * 1024;
/// Marker of a JWT in the text of a `.creds` file.
const JWT: &str = "BEGIN NATS USER JWT";

/// The text of a `.creds` file (a user's JWT and its key), or a bare token. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsCredentials(CredentialKind);

#[derive(Clone, PartialEq, Eq)]
enum CredentialKind {
    Token(String),
    File(String),
}

/// Why a text is not a credential. The text itself is never repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NatsCredentialsError {
    /// Empty, or too long.
    #[error(
        "nats credentials have {bytes} bytes: expected a token, or the text of a .creds file of up to 64 KiB"
    )]
    Length {
        /// Length of the text.
        bytes: usize,
    },
    /// A text with a JWT that cannot be used.
    #[error("nats credentials are a damaged .creds file ({reason}): fetch the user's file anew")]
    File {
        /// The reason.
        reason: String,
    },
    /// Several lines, or a text with spaces.
    #[error(
        "nats credentials are no token: expected one line of visible ascii, or the text of a .creds file"
    )]
    Token,
}

impl NatsCredentials {
    /// Adds the credentials to the options of a connection.
    pub(crate) fn give(&self, options: ConnectOptions) -> ConnectOptions {
        match &self.0 {
            CredentialKind::Token(token) => options.token(token.clone()),
            // The text was parsed successfully at construction.
            CredentialKind::File(text) => options.credentials(text).unwrap_or_default(),
        }
    }
}

impl FromStr for NatsCredentials {
    type Err = NatsCredentialsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.is_empty() || text.len() > MAX_TEXT {
            return Err(NatsCredentialsError::Length { bytes: text.len() });
        }
        if text.contains(JWT) {
            // The parser requires a line end behind the last line.
            let text = format!("{text}\n");
            let damaged = |error: std::io::Error| NatsCredentialsError::File {
                reason: error.to_string(),
            };
            ConnectOptions::with_credentials(&text).map_err(damaged)?;
            return Ok(Self(CredentialKind::File(text)));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(NatsCredentialsError::Token);
        }
        Ok(Self(CredentialKind::Token(text.to_owned())))
    }
}

impl fmt::Debug for NatsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NatsCredentials(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The example key from the manual of nkeys.
    const CREDS: &str = "-----BEGIN NATS USER JWT-----\neyJ0eXAiOiJqd3QifQ.e30.c2ln\n------END NATS USER JWT------\n\n\
        -----BEGIN USER NKEY SEED-----\nSUAIO3FHUX5PNV2LQIIP7TZ3N4L7TX3W53MQGEIVYFIGA635OZCKEYHFLM\n\
        ------END USER NKEY SEED------";

    #[test]
    fn a_token_and_a_creds_file_are_distinguished() {
        assert_eq!(
            " t0ken\n".parse(),
            Ok(NatsCredentials(CredentialKind::Token("t0ken".to_owned())))
        );
        let read: NatsCredentials = CREDS.parse().unwrap();
        assert!(matches!(&read.0, CredentialKind::File(_)));
        assert_eq!(format!("{read:?}"), "NatsCredentials(***)");
        read.give(ConnectOptions::new());
    }

    #[test]
    fn a_bad_credential_is_refused_without_quoting_it() {
        for text in ["", " \n", "two words", "zwei\nzeilen", "schlüssel"] {
            let error = text.parse::<NatsCredentials>().unwrap_err().to_string();
            assert!(
                error.contains(".creds") && (text.trim().is_empty() || !error.contains(text)),
                "{error}"
            );
        }
        let damaged = CREDS.replace("SUAIO3FH", "SUAIO3FX");
        let error = damaged.parse::<NatsCredentials>().unwrap_err().to_string();
        assert!(
            error.contains("damaged .creds file") && !error.contains("SUAIO3FX"),
            "{error}"
        );
    }
}
