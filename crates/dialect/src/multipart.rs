//! Forms (`multipart/form-data`): the model that a form names.
//!
//! Only the beginning of a form is read: its files are not for the router.

use std::ops::Range;

/// Longest boundary (RFC 2046).
const MAX_BOUNDARY: usize = 70;
/// Longest head of a part, in bytes.
const MAX_PART_HEAD: usize = 8 * 1024;
/// Longest name of a model, in bytes.
const MAX_MODEL: usize = 1024;

/// The field `model` of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormModel {
    /// Its value.
    pub name: String,
    /// Where the value is in the body.
    pub place: Range<usize>,
}

/// The reason why the model of a form is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormError {
    /// The content type is not a form's, or it has no boundary.
    NotAForm,
    /// The parts are not framed as the boundary announces.
    Malformed,
    /// The form has no such field.
    Missing,
    /// The field is not in the beginning that was read.
    TooLate,
    /// The field occurs twice.
    Twice,
    /// The value is empty, too long, or no text.
    BadValue,
}

/// Finds the field `model` of a form. `body` is the form, or its beginning if `is_whole` is false.
///
/// ```
/// let body = b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--x--\r\n";
/// let found = dialect::form_model("multipart/form-data; boundary=x", body, true).unwrap();
/// assert_eq!((found.name.as_str(), &body[found.place]), ("m", &b"m"[..]));
/// ```
///
/// # Errors
/// The field is not there, or not usable.
pub fn form_model(content_type: &str, body: &[u8], is_whole: bool) -> Result<FormModel, FormError> {
    let boundary = boundary(content_type).ok_or(FormError::NotAForm)?;
    let mut parts = Parts {
        body,
        delimiter: format!("\r\n--{boundary}"),
        at: 0,
    };
    let mut model = None;
    let end = loop {
        match parts.next_part() {
            PartEnd::Whole(part) if part.name == "model" => {
                if model.replace(part.content).is_some() {
                    return Err(FormError::Twice);
                }
            }
            PartEnd::Whole(_) => {}
            end => break end,
        }
    };
    if matches!(end, PartEnd::Malformed) || (is_whole && matches!(end, PartEnd::Cut)) {
        return Err(FormError::Malformed);
    }
    let place = match (model, is_whole) {
        (Some(place), _) => place,
        (None, true) => return Err(FormError::Missing),
        (None, false) => return Err(FormError::TooLate),
    };
    let value = body.get(place.clone()).unwrap_or_default();
    match std::str::from_utf8(value) {
        Ok(name) if !name.is_empty() && name.len() <= MAX_MODEL => Ok(FormModel {
            name: name.to_owned(),
            place,
        }),
        _ => Err(FormError::BadValue),
    }
}

/// Returns the boundary of a form's parts.
fn boundary(content_type: &str) -> Option<&str> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = only_parameter(parameters, "boundary")?;
    (1..=MAX_BOUNDARY).contains(&value.len()).then_some(value)
}

/// The parts of a form, in their order.
struct Parts<'a> {
    body: &'a [u8],
    /// What ends a part. Before the first one its line break may be missing.
    delimiter: String,
    at: usize,
}

struct Part<'a> {
    name: &'a str,
    content: Range<usize>,
}

enum PartEnd<'a> {
    Whole(Part<'a>),
    /// The form has ended.
    Last,
    /// What was read ends within this part.
    Cut,
    Malformed,
}

impl<'a> Parts<'a> {
    fn next_part(&mut self) -> PartEnd<'a> {
        if self.at == 0 {
            let first = self.delimiter.as_bytes().get(2..).unwrap_or_default();
            if !self.body.starts_with(first) {
                return PartEnd::Malformed;
            }
            self.at = first.len();
        }
        let rest = self.body.get(self.at..).unwrap_or_default();
        if rest.starts_with(b"--") {
            return PartEnd::Last;
        }
        if rest.len() < 2 {
            return PartEnd::Cut;
        }
        let Some(rest) = rest.strip_prefix(b"\r\n") else {
            return PartEnd::Malformed;
        };
        let Some(head_end) = find(rest, b"\r\n\r\n") else {
            return if rest.len() > MAX_PART_HEAD {
                PartEnd::Malformed
            } else {
                PartEnd::Cut
            };
        };
        let head = rest.get(..head_end).unwrap_or_default();
        let start = self.at + 2 + head_end + 4;
        let content = self.body.get(start..).unwrap_or_default();
        let Some(length) = find(content, self.delimiter.as_bytes()) else {
            return PartEnd::Cut;
        };
        self.at = start + length + self.delimiter.len();
        match (head_end <= MAX_PART_HEAD, field_name(head)) {
            (true, Some(name)) => PartEnd::Whole(Part {
                name,
                content: start..start + length,
            }),
            _ => PartEnd::Malformed,
        }
    }
}

/// Returns the name in a part's `Content-Disposition`.
fn field_name(head: &[u8]) -> Option<&str> {
    let head = std::str::from_utf8(head).ok()?;
    let mut dispositions = head.split("\r\n").filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim()
            .eq_ignore_ascii_case("content-disposition")
            .then_some(value)
    });
    let disposition = dispositions.next()?;
    match dispositions.next() {
        Some(_) => None,
        None => only_parameter(disposition, "name"),
    }
}

/// Returns the value of a parameter. `None` without it, and where parsers may disagree on it: there
/// are two, or one in the extended form (`name*=`).
fn only_parameter<'a>(text: &'a str, wanted: &str) -> Option<&'a str> {
    let mut found = None;
    let mut quoted = false;
    let parameters = text.split(|c: char| {
        quoted ^= c == '"';
        c == ';' && !quoted
    });
    for (name, value) in parameters.filter_map(|parameter| parameter.split_once('=')) {
        let name = name.trim();
        let plain = name.strip_suffix('*').unwrap_or(name);
        if !plain.eq_ignore_ascii_case(wanted) {
            continue;
        }
        if plain != name || found.is_some() {
            return None;
        }
        found = Some(value.trim().trim_matches('"'));
    }
    found
}

fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    let first = *word.first()?;
    let mut from = 0;
    loop {
        let rest = text.get(from..)?;
        let at = from + rest.iter().position(|byte| *byte == first)?;
        if text.get(at..)?.starts_with(word) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=\"a-b\"";

    fn part(fields: &str, content: &str) -> String {
        format!("--a-b\r\nContent-Disposition: form-data; {fields}\r\n\r\n{content}\r\n")
    }

    fn whole(parts: &[String]) -> Result<FormModel, FormError> {
        form_model(
            TYPE,
            format!("{}--a-b--\r\n", parts.concat()).as_bytes(),
            true,
        )
    }

    #[test]
    fn the_model_is_found_before_and_after_a_file_with_its_place() {
        let file = part(
            "name=\"file\"; filename=\"model\"\r\nContent-Type: audio/wav",
            "\r\n--a\r\nname=\"model\"",
        );
        let model = part("name=\"model\"", "whisper");
        for parts in [[file.clone(), model.clone()], [model, file]] {
            let body = format!("{}--a-b--", parts.concat());
            let found = form_model(TYPE, body.as_bytes(), true).expect("a model");
            assert_eq!(found.name, "whisper");
            assert_eq!(&body[found.place], "whisper");
        }
    }

    #[test]
    fn a_beginning_shows_the_model_only_if_its_part_is_whole() {
        let (model, file) = (part("name=model", "m"), part("name=file", "sound"));
        let body = [&*model, &*file].concat();
        for cut in 0..body.len() {
            let found = form_model(TYPE, &body.as_bytes()[..cut], false);
            // The part ends with the next delimiter.
            if cut < model.len() + "--a-b".len() {
                assert!(
                    matches!(found, Err(FormError::TooLate | FormError::Malformed)),
                    "{cut}"
                );
            } else {
                assert_eq!(found.expect("a model").name, "m", "{cut}");
            }
        }
        let late = [&*file, &*model].concat();
        let cut = &late.as_bytes()[..file.len()];
        assert_eq!(form_model(TYPE, cut, false), Err(FormError::TooLate));
    }

    #[test]
    fn a_form_without_a_usable_model_is_refused_with_the_reason() {
        let model = |value: &str| part("name=\"model\"", value);
        assert_eq!(whole(&[]), Err(FormError::Missing));
        assert_eq!(whole(&[part("name=file", "x")]), Err(FormError::Missing));
        assert_eq!(whole(&[model("a"), model("a")]), Err(FormError::Twice));
        assert_eq!(whole(&[model("")]), Err(FormError::BadValue));
        let long = "m".repeat(MAX_MODEL + 1);
        assert_eq!(whole(&[model(&long)]), Err(FormError::BadValue));
        assert_eq!(whole(&[part("filename=x", "a")]), Err(FormError::Malformed));
        let head = "x".repeat(MAX_PART_HEAD);
        assert_eq!(
            whole(&[part(&format!("name=a; b={head}"), "a")]),
            Err(FormError::Malformed)
        );
        for body in [
            "",
            "x",
            "--a-",
            "--a-b",
            "--a-bx",
            "--a-b\r\n",
            "--a-b\r\n\r\nx",
        ] {
            assert_eq!(
                form_model(TYPE, body.as_bytes(), true),
                Err(FormError::Malformed),
                "{body}"
            );
        }
    }

    #[test]
    fn only_a_form_with_a_boundary_is_read() {
        for other in [
            "",
            "application/json",
            "multipart/form-data",
            "multipart/mixed; boundary=a",
            "multipart/form-data; charset=x",
            "multipart/form-data; boundary=",
            &format!(
                "multipart/form-data; boundary={}",
                "a".repeat(MAX_BOUNDARY + 1)
            ),
        ] {
            assert_eq!(
                form_model(other, b"--a--", true),
                Err(FormError::NotAForm),
                "{other}"
            );
        }
        assert_eq!(
            boundary("Multipart/Form-Data; charset=utf-8; Boundary=a"),
            Some("a")
        );
    }

    #[test]
    fn a_part_whose_name_parsers_may_read_differently_is_malformed() {
        for head in [
            "name=\"x\"; name=\"model\"",
            "name=\"x\"; name*=utf-8''model",
            "name=\"x\"\r\nContent-Disposition: form-data; name=\"model\"",
        ] {
            let head = format!("Content-Disposition: form-data; {head}");
            assert_eq!(field_name(head.as_bytes()), None, "{head}");
        }
        let quoted = b"Content-Disposition: form-data; filename=\"a; name=model\"; name=\"file\"";
        assert_eq!(field_name(quoted), Some("file"));
        assert_eq!(
            boundary("multipart/form-data; boundary=a; boundary=b"),
            None
        );
        assert_eq!(
            boundary("multipart/form-data; boundary=\"a;b\""),
            Some("a;b")
        );
    }
}
