//! What a NATS server wants to see before it lets a client in.

use std::{fmt, str::FromStr};

use async_nats::ConnectOptions;

/// Longest text that can be credentials, bytes.
const MAX_TEXT: usize = 64 * 1024;
/// What the text of a `.creds` file has in it.
const JWT: &str = "BEGIN NATS USER JWT";

/// The text of a `.creds` file (a user's JWT and its key), or a bare token. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsCredentials(CredentialKind);

#[derive(Clone, PartialEq, Eq)]
enum CredentialKind {
    Token(String),
    File(String),
}

/// Why a text is neither. It is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NatsCredentialsError {
    /// Nothing in it, or far too much.
    #[error(
        "nats credentials have {bytes} bytes: expected a token, or the text of a .creds file of up to 64 KiB"
    )]
    Length {
        /// How many.
        bytes: usize,
    },
    /// It has a JWT in it and cannot be used.
    #[error("nats credentials are a damaged .creds file ({reason}): fetch the user's file anew")]
    File {
        /// What is wrong.
        reason: String,
    },
    /// Several lines, or spaces.
    #[error(
        "nats credentials are no token: expected one line of visible ascii, or the text of a .creds file"
    )]
    Token,
}

impl NatsCredentials {
    /// Puts them into the options of a connection.
    pub(crate) fn give(&self, options: ConnectOptions) -> ConnectOptions {
        match &self.0 {
            CredentialKind::Token(token) => options.token(token.clone()),
            // It was read when this was made.
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
            // The parser wants a line's end behind the last line.
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

    // The key of no user anywhere: it is the one in the manual of nkeys.
    const CREDS: &str = "-----BEGIN NATS USER JWT-----\neyJ0eXAiOiJqd3QifQ.e30.c2ln\n------END NATS USER JWT------\n\n\
        -----BEGIN USER NKEY SEED-----\nSUAIO3FHUX5PNV2LQIIP7TZ3N4L7TX3W53MQGEIVYFIGA635OZCKEYHFLM\n\
        ------END USER NKEY SEED------";

    #[test]
    fn a_token_and_a_creds_file_are_told_apart() {
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
    fn what_is_neither_is_named_and_not_repeated() {
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
