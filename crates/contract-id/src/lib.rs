//! The attribute that ties a test to the promises it shows.
//!
//! `#[contract("V8", "V10")]` above a `#[test]` names promises of the project's contract by id. The attribute changes
//! nothing about the test. `cargo xtask contract-status` reads it from the sources, joins it with the test results and
//! writes `docs/contract-status.md`.
//!
//! The attribute does not check that an id exists: the generator does, where the list of ids is at hand.

use proc_macro::{TokenStream, TokenTree};

/// Names the contract ids that a test shows, as string literals separated by commas.
///
/// ```
/// use contract_id::contract;
///
/// #[contract("V10")]
/// fn hashes_are_stable() {}
/// hashes_are_stable();
/// ```
///
/// Anything but string literals is a compile error, so that the generator never meets an id it cannot read.
#[proc_macro_attribute]
pub fn contract(ids: TokenStream, item: TokenStream) -> TokenStream {
    let mut any = false;
    for token in ids {
        let fine = match &token {
            TokenTree::Literal(literal) => {
                any = true;
                literal.to_string().starts_with('"')
            }
            TokenTree::Punct(punct) => punct.as_char() == ',',
            _ => false,
        };
        if !fine {
            return complain(
                "contract ids are string literals separated by commas, as in #[contract(\"V8\")]",
            );
        }
    }
    if any {
        item
    } else {
        complain("name at least one contract id, as in #[contract(\"V8\")]")
    }
}

fn complain(message: &str) -> TokenStream {
    format!("compile_error!({message:?});")
        .parse()
        .unwrap_or_default()
}
