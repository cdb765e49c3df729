//! Checks whether chats get the same token ids here and in the engine.

use config::ChatTemplateSetting;
use fleet::WorkerProbe;

use super::{CheckSubject, Finding, token_difference::difference};
use crate::observe::{self, EngineTokenization};

pub(super) fn check(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Finding {
    let chats = &subject.seen.tokens.chats;
    let accepted: Vec<&observe::TokenCase> = chats
        .iter()
        .filter(|one| {
            matches!(
                one.engine,
                EngineTokenization::Ids(_) | EngineTokenization::Count(_)
            )
        })
        .collect();
    if accepted.is_empty() {
        return Finding::skip(match chats.is_empty() {
            true => "the engine has no /tokenize to compare with",
            false => "the engine renders none of the chats tried",
        });
    }
    let fix = fix(subject, probe);
    // Features of every chat come first: they decide.
    let (plain, special): (Vec<&observe::TokenCase>, Vec<_>) =
        accepted.iter().copied().partition(|one| one.plain);
    if let Some((one, difference)) = first_differing(&plain) {
        let differing = accepted.iter().filter(|one| difference_of(one)).count();
        let message = format!(
            "the engine renders {differing} of {} chats differently, first {}: {difference}",
            accepted.len(),
            one.name
        );
        return with_pieces(Finding::fail(message, fix), one);
    }
    if let Some((name, reason)) = unrendered(&plain) {
        return Finding::fail(
            format!("{name} cannot be rendered here as the engine does: {reason}"),
            fix,
        );
    }
    if let Some(finding) = special_differs(&special, &fix) {
        return finding;
    }
    let digest = probe
        .artefacts
        .prompt
        .as_ref()
        .and_then(|prompt| prompt.template_digest());
    let finding = Finding::ok(format!("{} chats are rendered alike", accepted.len()));
    digest.map_or(finding.clone(), |digest| finding.found(digest))
}

fn fix(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> String {
    match &subject.settings.models.get(&probe.base).chat_template {
        ChatTemplateSetting::File(file) => format!(
            "start the engine with --chat-template {file}, or set models.entries[{:?}].chat_template to the engine's own",
            probe.base,
            file = file.display()
        ),
        ChatTemplateSetting::Auto => format!(
            "set models.entries[{:?}].chat_template to the file that the engine was started with (--chat-template), or start the engine without it",
            probe.base
        ),
    }
}

/// Reports a difference in chats with features that not every chat has.
fn special_differs(special: &[&observe::TokenCase], fix: &str) -> Option<Finding> {
    if let Some((one, difference)) = first_differing(special) {
        let names: Vec<&str> = special
            .iter()
            .filter(|one| difference_of(one))
            .map(|one| one.name)
            .collect();
        let message = format!(
            "plain chats are rendered alike, those with {} are not: {difference}",
            names.join(", with ")
        );
        return Some(with_pieces(Finding::warn(message, fix), one));
    }
    let (name, reason) = unrendered(special)?;
    Some(Finding::warn(
        format!(
            "{name} is rendered by the engine and not here: such chats are compared as text ({reason})"
        ),
        fix,
    ))
}

/// Returns the first chat that only the engine renders, and the reason.
fn unrendered<'a>(chats: &[&'a observe::TokenCase]) -> Option<(&'a str, &'a str)> {
    chats
        .iter()
        .find_map(|one| Some((one.name, one.own.as_ref().err()?.as_str())))
}

fn first_differing<'a>(
    chats: &[&'a observe::TokenCase],
) -> Option<(&'a observe::TokenCase, String)> {
    chats.iter().find_map(|one| Some((*one, difference(one)?)))
}

fn with_pieces(finding: Finding, one: &observe::TokenCase) -> Finding {
    match &one.pieces {
        Some((engine, own)) => finding
            .found(format!("{engine:?}"))
            .expected(format!("{own:?}")),
        None => finding,
    }
}

fn difference_of(one: &observe::TokenCase) -> bool {
    difference(one).is_some()
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::CheckFixture, *};
    use api::CheckStatus;

    fn case(name: &'static str, engine: &[u32], own: Result<&[u32], &str>) -> observe::TokenCase {
        let own = own.map(<[u32]>::to_vec).map_err(str::to_owned);
        let plain = !["tools", "content parts"].contains(&name);
        observe::TokenCase {
            name,
            plain,
            engine: EngineTokenization::Ids(engine.to_vec()),
            own,
            pieces: None,
        }
    }

    #[test]
    fn a_different_template_is_one_failure_that_names_the_first_chat() {
        let mut fixture = CheckFixture::healthy();
        fixture
            .seen
            .tokens
            .chats
            .push(case("tools", &[4, 5], Ok(&[4, 6])));
        fixture
            .seen
            .tokens
            .chats
            .push(case("a system message", &[1, 2], Ok(&[1, 3])));
        assert_eq!(fixture.failed(), ["chat_template"]);
        let message = fixture.check("chat_template").message;
        assert!(
            message.contains("2 of 3 chats differently, first a system message: token 1 of 2"),
            "{message}"
        );
    }

    #[test]
    fn differing_chats_with_tools_or_parts_are_a_warning_that_names_them() {
        let mut fixture = CheckFixture::healthy();
        fixture
            .seen
            .tokens
            .chats
            .push(case("tools", &[1, 2], Ok(&[1, 3])));
        assert_eq!(
            (fixture.failed(), fixture.check("chat_template").status),
            (vec![], CheckStatus::Warn)
        );
        assert!(
            fixture
                .check("chat_template")
                .message
                .contains("those with tools are not: token 1 of 2")
        );
    }

    #[test]
    fn a_chat_that_only_the_engine_renders_is_a_warning() {
        let mut fixture = CheckFixture::healthy();
        fixture
            .seen
            .tokens
            .chats
            .push(case("content parts", &[1, 2], Err("images")));
        assert_eq!(fixture.check("chat_template").status, CheckStatus::Warn);
        fixture.seen.tokens.chats = vec![case("a user message", &[1], Err("no template"))];
        assert_eq!(fixture.failed(), ["chat_template"]);
    }
}
