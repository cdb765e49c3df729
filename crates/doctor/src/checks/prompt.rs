//! Checks whether prompts get the same token ids here and in the engine.

use config::TokenizerSetting;
use fleet::{TokenizerSource, WorkerProbe};

use super::{
    CheckSubject, Finding, Findings,
    cache::unprobed,
    template,
    token_difference::{difference, own_ids, shown_ids},
};
use crate::observe::{
    EngineTokenization, OwnPrompt, ProbeOutcome, ProbeResults, PromptForm, first_difference,
};

pub(super) fn check(subject: &CheckSubject<'_>, probe: &WorkerProbe, findings: &mut Findings) {
    if probe.artefacts.prompt.is_none() {
        findings.set("tokenizer", without_own(subject, probe));
        findings.skip_rest(
            &["chat_template", "special_tokens"],
            "the router has no tokenizer of its own for this model",
        );
        return;
    }
    findings.set("tokenizer", tokenizer(subject, probe));
    if findings.failed("tokenizer") {
        findings.skip_rest(
            &["chat_template", "special_tokens"],
            "the tokenizers differ",
        );
        return;
    }
    findings.set("special_tokens", special_tokens(subject, probe));
    findings.set("chat_template", template::check(subject, probe));
}

/// Returns the fix that selects the model's tokenizer: the key and the flag.
fn choose(probe: &WorkerProbe) -> String {
    let base = &probe.base;
    if let TokenizerSource::Dir(dir) = &probe.artefacts.source
        && root(probe).is_some_and(|root| dir.as_path() == std::path::Path::new(root))
    {
        // The engine names the same files, yet tokenizes differently.
        let dir = dir.display();
        return format!(
            "start the engine with --tokenizer {dir}, or set models.entries[{base:?}].tokenizer to the directory given to \
             its --tokenizer"
        );
    }
    // The engine's path is most likely right here too.
    match root(probe) {
        Some(root) => format!(
            "set models.entries[{base:?}].tokenizer: {root}, or use --tokenizer {base}={root}"
        ),
        None => format!(
            "set models.entries[{base:?}].tokenizer to the directory of the model that the engine serves, or use \
             --tokenizer {base}=DIR"
        ),
    }
}

/// Returns the directory from which the engine says it loaded its model.
fn root(probe: &WorkerProbe) -> Option<&str> {
    let model = probe.models.iter().find(|model| model.id == probe.base)?;
    model.root.as_deref().filter(|root| root.starts_with('/'))
}

fn without_own(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Finding {
    let settings = subject.settings.models.get(&probe.base);
    if let Some(problem) = &probe.artefacts.problem {
        if probe.artefacts.source == TokenizerSource::Remote
            && subject.seen.tokens.has_route == Some(true)
        {
            let message =
                format!("the engine's own /tokenize is asked for every prompt, because {problem}");
            return Finding::warn(message, choose(probe)).found("engine");
        }
        return Finding::fail(format!("no tokenizer: {problem}"), choose(probe));
    }
    match (&settings.tokenizer, subject.seen.tokens.has_route) {
        (TokenizerSetting::None, _) => {
            Finding::skip("switched off by models.*.tokenizer: none, prompts are compared as text")
        }
        (TokenizerSetting::Engine, Some(false)) => Finding::fail(
            "models.*.tokenizer is engine, and the engine has no /tokenize",
            choose(probe),
        ),
        (_, Some(true)) => Finding::ok("the engine's own /tokenize is asked").found("engine"),
        _ => Finding::warn(
            "no tokenizer was found: prompts are compared as text, and hits are guessed",
            choose(probe),
        )
        .found("none"),
    }
}

/// Returns the origin of our tokenizer.
fn origin(probe: &WorkerProbe) -> String {
    match &probe.artefacts.source {
        TokenizerSource::Dir(dir) => dir.display().to_string(),
        TokenizerSource::Engine => "the files it serves".to_owned(),
        TokenizerSource::Remote | TokenizerSource::None => "none".to_owned(),
    }
}

fn tokenizer(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Finding {
    let tokens = &subject.seen.tokens;
    let origin = origin(probe);
    if tokens.has_route != Some(true) {
        return by_request(subject, probe, &origin);
    }
    let differing = tokens
        .texts
        .iter()
        .filter_map(|one| Some((one, difference(one)?)))
        .collect::<Vec<_>>();
    let compared = tokens
        .texts
        .iter()
        .filter(|one| matches!(one.engine, EngineTokenization::Ids(_)))
        .count();
    match differing.first() {
        Some((one, difference)) => {
            let message = format!(
                "the engine's token ids differ from those of {origin} in {} of {compared} texts, first in {:?}: {difference}",
                differing.len(),
                one.name
            );
            Finding::fail(message, choose(probe))
                .found(shown_ids(one))
                .expected(own_ids(one))
        }
        None if compared == 0 => Finding::skip("the engine's /tokenize did not answer"),
        None => Finding::ok(format!(
            "{compared} texts have the same ids in {origin} and in the engine"
        ))
        .found(origin),
    }
}

/// Checks without `/tokenize`: compares the reply's prompt ids and the announced blocks of our
/// request.
fn by_request(subject: &CheckSubject<'_>, probe: &WorkerProbe, origin: &str) -> Finding {
    let probes = &subject.seen.probes;
    let (ProbeOutcome::Answered, Some(own)) = (&probes.outcome, &probes.own) else {
        return Finding::skip(format!(
            "the engine has no /tokenize, and {}",
            unprobed(&probes.outcome)
        ));
    };
    let differs = match probes.form {
        PromptForm::Text => text_differs(probes, own),
        PromptForm::Chat => chat_differs(probes, own),
    };
    // Batches contain the ids that the engine hashes: they decide if its reply has only their
    // number, or nothing.
    let foreign = probes.form == PromptForm::Text
        && probes
            .arrival
            .as_ref()
            .is_some_and(|arrival| arrival.foreign);
    match differs {
        Some(None) | None if foreign => Some(
            "it announced blocks after a request, none with the token ids of its prompt".to_owned(),
        ),
        None => return Finding::skip("the engine tells neither token ids nor their number"),
        Some(differs) => differs,
    }
    .map_or_else(
        || {
            Finding::ok(format!(
                "a request's prompt has the same tokens in {origin} and in the engine"
            ))
            .found(origin)
        },
        |what| {
            Finding::fail(
                format!("the engine's token ids differ from those of {origin}: {what}"),
                choose(probe),
            )
        },
    )
}

/// Compares the ids of a text; `Some(None)`: equal, `None`: the engine reports no ids.
fn text_differs(probes: &ProbeResults, own: &OwnPrompt) -> Option<Option<String>> {
    let ours = own.ids.as_ref()?;
    if let Some(ids) = &probes.second.ids {
        return Some(
            first_difference(ids, ours).map(|at| format!("token {at} of a request's prompt")),
        );
    }
    let count = probes.second.prompt_tokens?;
    Some((count != ours.len() as u64).then(|| {
        format!(
            "the engine counts {count} tokens in a prompt of {}",
            ours.len()
        )
    }))
}

/// Compares the ids of a text inside a chat, whatever the template puts around it.
fn chat_differs(probes: &ProbeResults, own: &OwnPrompt) -> Option<Option<String>> {
    if let Some(ids) = &probes.second.ids {
        // Tokens at its ends may merge with the text beside them.
        let inner = own
            .text
            .get(1..own.text.len().saturating_sub(1))
            .unwrap_or_default();
        let found = inner.is_empty() || ids.windows(inner.len()).any(|part| part == inner);
        return Some((!found).then(|| "the text of a chat has other tokens".to_owned()));
    }
    let longer_by = probes
        .second
        .prompt_tokens?
        .checked_sub(probes.first.prompt_tokens?)?;
    Some((longer_by != own.longer_by).then(|| {
        format!(
            "the engine counts {longer_by} tokens in a text of {}",
            own.longer_by
        )
    }))
}

fn special_tokens(subject: &CheckSubject<'_>, probe: &WorkerProbe) -> Finding {
    let special = &subject.seen.tokens.special;
    let compared = special
        .iter()
        .filter(|one| matches!(one.engine, EngineTokenization::Ids(_)))
        .count();
    if let Some((one, difference)) = special.iter().find_map(|one| Some((one, difference(one)?))) {
        let message = format!(
            "with special tokens the engine's ids differ from ours, first in {:?}: {difference}",
            one.name
        );
        let fix = format!("{} with its tokenizer_config.json", choose(probe));
        return Finding::fail(message, fix)
            .found(shown_ids(one))
            .expected(own_ids(one));
    }
    if compared == 0 {
        return Finding::skip("the engine has no /tokenize to compare with");
    }
    Finding::ok("special tokens are added alike")
}

#[cfg(test)]
mod tests {
    use fleet::ModelArtefacts;

    use super::{super::fixture::CheckFixture, *};
    use crate::observe;
    use api::CheckStatus;

    fn case(name: &'static str, engine: &[u32], own: Result<&[u32], &str>) -> observe::TokenCase {
        let own = own.map(<[u32]>::to_vec).map_err(str::to_owned);
        observe::TokenCase {
            name,
            plain: true,
            engine: EngineTokenization::Ids(engine.to_vec()),
            own,
            pieces: None,
        }
    }

    #[test]
    fn another_tokenizer_is_one_failure_that_names_text_and_position() {
        let mut fixture = CheckFixture::healthy();
        fixture
            .seen
            .tokens
            .texts
            .push(case("digits", &[1, 2, 3], Ok(&[1, 2, 4, 5])));
        fixture
            .seen
            .tokens
            .special
            .push(case("digits", &[0, 1], Ok(&[9, 1])));
        fixture
            .seen
            .tokens
            .chats
            .push(case("tools", &[0, 1], Ok(&[9, 1])));
        assert_eq!(fixture.failed(), ["tokenizer"]);
        let check = fixture.check("tokenizer");
        assert!(
            check
                .message
                .contains("in 1 of 2 texts, first in \"digits\": token 2 of 3"),
            "{}",
            check.message
        );
        assert_eq!(
            (check.found.as_deref(), check.expected.as_deref()),
            (Some("[1, 2, 3]"), Some("[1, 2, 4, 5]"))
        );
        assert!(
            check
                .fix
                .is_some_and(|fix| fix.contains("models.entries[\"sim\"].tokenizer"))
        );
    }

    #[test]
    fn an_engine_that_names_the_files_used_here_should_load_them() {
        let mut fixture = CheckFixture::healthy();
        fixture
            .seen
            .tokens
            .texts
            .push(case("digits", &[1], Ok(&[2])));
        fixture.probe().models[0].root = Some("/models/a".into());
        let fix = |fixture: &CheckFixture| fixture.check("tokenizer").fix.unwrap_or_default();
        assert!(
            fix(&fixture).contains("--tokenizer sim=/models/a"),
            "{}",
            fix(&fixture)
        );
        let mut artefacts = ModelArtefacts::clone(&fixture.probe().artefacts);
        artefacts.source = TokenizerSource::Dir("/models/a".into());
        fixture.probe().artefacts = artefacts.into();
        assert!(
            fix(&fixture).starts_with("start the engine with --tokenizer /models/a, or set"),
            "{}",
            fix(&fixture)
        );
    }

    #[test]
    fn a_broken_local_tokenizer_is_a_warning_if_the_engine_can_tokenize() {
        let mut fixture = CheckFixture::healthy();
        let artefacts = ModelArtefacts {
            prompt: None,
            source: TokenizerSource::Remote,
            problem: Some("it is broken".into()),
        };
        fixture.probe().artefacts = artefacts.into();
        assert_eq!(
            (fixture.failed(), fixture.check("tokenizer").status),
            (vec![], CheckStatus::Warn)
        );
    }

    /// Returns an engine without `/tokenize` whose replies have no ids.
    fn counts_only() -> CheckFixture {
        let mut fixture = CheckFixture::healthy();
        fixture.seen.tokens = observe::TokenComparison {
            has_route: Some(false),
            ..observe::TokenComparison::default()
        };
        fixture.seen.probes.second.ids = None;
        fixture
    }

    #[test]
    fn a_chat_reveals_the_tokenizer_under_any_template() {
        let mut fixture = counts_only();
        fixture.seen.probes.form = PromptForm::Chat;
        fixture.seen.probes.first.prompt_tokens = Some(41);
        let own = fixture
            .seen
            .probes
            .own
            .as_mut()
            .expect("a healthy scene has one");
        (own.ids, own.longer_by) = (Some(vec![7; 9]), 25);
        assert_eq!(
            fixture.check("tokenizer").status,
            CheckStatus::Ok,
            "by how much longer it got"
        );
        fixture.seen.probes.first.prompt_tokens = Some(30);
        assert_eq!(fixture.failed(), ["tokenizer"]);
        let text = fixture
            .seen
            .probes
            .own
            .as_ref()
            .map(|own| own.text.clone())
            .unwrap_or_default();
        fixture.seen.probes.second.ids = Some([&[900, 901], &text[..], &[902]].concat());
        assert_eq!(
            fixture.check("tokenizer").status,
            CheckStatus::Ok,
            "by its ids"
        );
        fixture.seen.probes.second.ids = Some(vec![900; 80]);
        assert_eq!(fixture.failed(), ["tokenizer"]);
    }

    #[test]
    fn differing_announced_ids_are_one_failure_that_names_the_tokenizer() {
        let mut fixture = counts_only();
        let arrival = fixture
            .seen
            .probes
            .arrival
            .as_mut()
            .expect("a healthy scene has one");
        (arrival.blocks, arrival.whole, arrival.foreign) = (0, 0, true);
        assert_eq!(
            fixture.failed(),
            ["tokenizer"],
            "as many tokens, and other ones"
        );
        fixture.seen.probes.second.prompt_tokens = Some(99);
        fixture.seen.probes.arrival = None;
        assert_eq!(
            fixture.failed(),
            ["tokenizer"],
            "stores were received without ours"
        );
        assert_eq!(fixture.check("events_arriving").status, CheckStatus::Skip);
    }

    #[test]
    fn other_special_tokens_are_one_failure() {
        let mut fixture = CheckFixture::healthy();
        fixture
            .seen
            .tokens
            .special
            .push(case("plain words", &[0, 5], Ok(&[5])));
        assert_eq!(fixture.failed(), ["special_tokens"]);
    }

    #[test]
    fn without_tokenize_a_requests_own_prompt_is_compared() {
        let mut fixture = CheckFixture::healthy();
        fixture.seen.tokens = observe::TokenComparison {
            has_route: Some(false),
            ..observe::TokenComparison::default()
        };
        assert_eq!(fixture.check("tokenizer").status, CheckStatus::Ok);
        fixture
            .seen
            .probes
            .own
            .as_mut()
            .expect("a healthy scene has one")
            .ids = Some(vec![7; 100]);
        assert_eq!(fixture.failed(), ["tokenizer"]);
        fixture.seen.probes.second.ids = None;
        assert_eq!(
            fixture.check("tokenizer").status,
            CheckStatus::Fail,
            "by its length"
        );
        fixture.seen.probes.outcome = ProbeOutcome::NotSent;
        assert_eq!(fixture.check("tokenizer").status, CheckStatus::Skip);
    }

    #[test]
    fn without_its_own_tokenizer_the_router_queries_the_engine_or_compares_texts() {
        let mut fixture = CheckFixture::healthy();
        fixture.probe().artefacts = std::sync::Arc::default();
        assert_eq!(fixture.check("tokenizer").status, CheckStatus::Ok);
        fixture.seen.tokens.has_route = Some(false);
        assert_eq!(fixture.check("tokenizer").status, CheckStatus::Warn);
        assert_eq!(fixture.failed(), [""; 0]);
    }
}
