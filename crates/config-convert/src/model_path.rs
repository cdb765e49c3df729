//! Classifies another router's `model_path`: a directory on this machine, or a model of a hub.

/// Longest accepted hub id, bytes.
const MAX_HUB_ID_BYTES: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ModelPath {
    /// The directory that holds `tokenizer.json`.
    Directory(String),
    /// `NAME` or `OWNER/NAME`.
    HubId(String),
    /// Something else, such as the URL of a bucket.
    Other,
}

/// Classifies by the spelling alone, as the file may be converted on another machine than the one
/// it is for.
pub(super) fn model_path(text: &str) -> ModelPath {
    let (directory, last) = text
        .rsplit_once('/')
        .map_or((None, text), |(directory, last)| (Some(directory), last));
    if text.contains("://") || text.is_empty() {
        ModelPath::Other
    } else if last == "tokenizer.json" {
        ModelPath::Directory(match directory {
            None => ".".to_owned(),
            Some("") => "/".to_owned(),
            // A name alone could be one of the words that the key takes.
            Some(name) if !name.contains('/') && !name.starts_with(['.', '~']) => {
                format!("./{name}")
            }
            Some(directory) => directory.to_owned(),
        })
    } else if is_hub_id(text) {
        ModelPath::HubId(text.to_owned())
    } else {
        ModelPath::Directory(text.to_owned())
    }
}

fn is_hub_id(text: &str) -> bool {
    let is_name = |part: &str| {
        part.starts_with(|letter: char| letter.is_ascii_alphanumeric())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    text.len() <= MAX_HUB_ID_BYTES && text.split('/').count() <= 2 && text.split('/').all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_and_hub_ids_are_distinguished_by_spelling() {
        for (text, directory) in [
            ("/models/llama", "/models/llama"),
            ("/models/llama/", "/models/llama/"),
            ("/models/llama/tokenizer.json", "/models/llama"),
            ("/tokenizer.json", "/"),
            ("./llama", "./llama"),
            ("../llama/tokenizer.json", "../llama"),
            ("~/llama", "~/llama"),
            ("tokenizer.json", "."),
            ("auto/tokenizer.json", "./auto"),
            ("models/meta/llama", "models/meta/llama"),
        ] {
            assert_eq!(
                model_path(text),
                ModelPath::Directory(directory.to_owned()),
                "{text}"
            );
        }
        for id in ["meta-llama/Llama-3.1-8B-Instruct", "gpt2", "Qwen/Qwen2.5_x"] {
            assert_eq!(model_path(id), ModelPath::HubId(id.to_owned()));
        }
        for text in ["", "s3://bucket/llama", "https://host/tokenizer.json"] {
            assert_eq!(model_path(text), ModelPath::Other, "{text}");
        }
    }
}
