//! The operators' tokens, and whose they are.

use std::{fmt, sync::Arc};

use api::openapi::Role;
use dialect::{ApiError, ErrorCode};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

/// Shortest token, in characters: 128 bits when drawn at random.
const SHORTEST: usize = 16;
/// Name of the owner of `admin.token_file`.
const OWNER_OF_FILE: &str = "admin token";
/// Name of every caller where no token is needed.
const ANYONE: &str = "this machine";

/// A token, stored as its digest.
#[derive(Clone)]
pub struct Token {
    digest: [u8; 32],
    owner: Operator,
}

/// Whose call it is.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    pub(crate) name: Arc<str>,
    pub(crate) role: Role,
    /// Whether it has sent a token.
    pub(crate) has_token: bool,
}

/// The tokens of a listener; none: it asks for none.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Vec<Token>);

/// A token that another one has as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedToken {
    /// The names of both owners.
    pub names: [Arc<str>; 2],
}

impl Token {
    /// Creates the token of `admin.token_file` from the file's content.
    ///
    /// # Errors
    ///
    /// The token is shorter than 16 characters.
    pub fn new(text: &str) -> Result<Self, ApiError> {
        Self::of(OWNER_OF_FILE, Role::Admin, text).map_err(|TooShort| {
            ApiError::new(
                ErrorCode::InvalidRequest,
                "the admin token is shorter than 16 characters: write a random one into admin.token_file",
            )
        })
    }

    /// Creates the token of an operator. Space around the text is not part of it.
    ///
    /// # Errors
    ///
    /// The token is shorter than 16 characters.
    pub fn of(name: &str, role: Role, text: &str) -> Result<Self, TooShort> {
        let text = text.trim();
        if text.len() < SHORTEST {
            return Err(TooShort);
        }
        let owner = Operator {
            name: name.into(),
            role,
            has_token: true,
        };
        let digest = Sha256::digest(text.as_bytes()).into();
        Ok(Self { digest, owner })
    }
}

/// A token of fewer than 16 characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooShort;

impl Operator {
    /// Returns the caller of a listener that asks for no token.
    pub(super) fn anyone() -> Self {
        Self {
            name: ANYONE.into(),
            role: Role::Admin,
            has_token: false,
        }
    }
}

impl Tokens {
    /// Takes tokens that are all different.
    ///
    /// # Errors
    ///
    /// Two owners have one token, so that it is not known whose calls are made with it.
    pub fn new(tokens: Vec<Token>) -> Result<Self, SharedToken> {
        for (at, token) in tokens.iter().enumerate() {
            let other = tokens[..at].iter().find(|it| it.digest == token.digest);
            if let Some(other) = other {
                let names = [other, token].map(|token| Arc::clone(&token.owner.name));
                return Err(SharedToken { names });
            }
        }
        Ok(Self(tokens))
    }

    /// Returns whether the listener asks for no token.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the owner of a token. The whole text is hashed, every token is compared, and each
    /// comparison takes the same time: none tells how much of a wrong token is right.
    pub(super) fn owner_of(&self, presented: &[u8]) -> Option<&Operator> {
        let digest: [u8; 32] = Sha256::digest(presented).into();
        self.0.iter().fold(None, |owner, token| {
            let fits = bool::from(token.digest.ct_eq(&digest));
            if fits { Some(&token.owner) } else { owner }
        })
    }
}

/// Shows the owner only: the digest of a short token can be found by trial.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const TEXT: &str = "0123456789abcdef0123456789abcdef";

    fn tokens(texts: &[&str]) -> Result<Tokens, SharedToken> {
        let token = |(at, text): (usize, &&str)| {
            Token::of(&format!("t{at}"), Role::Read, text).expect("long enough")
        };
        Tokens::new(texts.iter().enumerate().map(token).collect())
    }

    #[test]
    #[contract("S7")]
    fn the_whole_token_counts_and_not_its_beginning() {
        let tokens = tokens(&[TEXT]).expect("one");
        let name = |presented: &str| tokens.owner_of(presented.as_bytes()).map(|it| &*it.name);
        assert_eq!(name(TEXT), Some("t0"));
        for right in 0..TEXT.len() {
            assert_eq!(name(&TEXT[..right]), None, "{right}");
            let mut wrong = TEXT.to_owned();
            wrong.replace_range(right..=right, "x");
            assert_eq!(name(&wrong), None, "{right}");
        }
        assert_eq!(name(&format!("{TEXT}0")), None);
        assert_eq!(name(&TEXT.repeat(1000)), None);
    }

    #[test]
    fn each_token_has_one_owner() {
        let other = TEXT.to_uppercase();
        let both = tokens(&[TEXT, &other]).expect("two");
        let name = |text: &str| both.owner_of(text.as_bytes()).map(|it| &*it.name);
        assert_eq!((name(TEXT), name(&other)), (Some("t0"), Some("t1")));
        let shared = tokens(&[TEXT, &other, &format!(" {TEXT}\n")]).expect_err("a shared one");
        assert_eq!(shared.names.map(|name| name.to_string()), ["t0", "t2"]);
        assert_eq!(Token::of("a", Role::Admin, "short").err(), Some(TooShort));
    }

    #[test]
    #[contract("S81")]
    fn a_token_shows_its_owner_only() {
        let token = Token::of("ops", Role::Operate, TEXT).expect("long enough");
        let shown = format!("{token:?}");
        assert!(
            shown.contains("ops") && !shown.contains("digest"),
            "{shown}"
        );
    }
}
