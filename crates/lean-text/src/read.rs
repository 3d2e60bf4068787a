//! Texts as tokens.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tokenizers::Tokenizer;

use crate::chat::Template;
use crate::error::TextError;

/// Tokens, and which of them are to be learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// Ids in the vocabulary.
    pub tokens: Vec<u32>,
    /// Whether the loss of a token counts. That of the first, which follows nothing, cannot.
    pub counts: Vec<bool>,
}

/// The tokenizer in the folder of a model that has so many tokens, and these special ones.
///
/// # Errors
///
/// It is not there, has tokens that the model has not, or lacks a special one.
pub fn tokenizer(
    folder: &Path,
    vocabulary: usize,
    special: &[u32],
) -> Result<Tokenizer, TextError> {
    let path = folder.join("tokenizer.json");
    let wrong = |reason: String| TextError::contents(&path, reason);
    let tokenizer = Tokenizer::from_file(&path).map_err(|error| wrong(error.to_string()))?;
    let last = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
    if last as usize >= vocabulary {
        return Err(wrong(format!(
            "it has a token {last}, and the model {vocabulary} tokens: it is of another model, or the \
             vocabulary was resized"
        )));
    }
    match special
        .iter()
        .find(|token| tokenizer.id_to_token(**token).is_none())
    {
        Some(token) => Err(wrong(format!(
            "it has no token {token}, which the model names: it is of another model"
        ))),
        None => Ok(tokenizer),
    }
}

/// Reads a file: JSON lines of `{"messages": [..]}` or `{"text": ..}` if its name ends in `.jsonl`, else
/// plain text. What is not a conversation is cut into windows of `time` tokens. Messages are written by
/// the chat template in the folder of a model.
///
/// # Errors
///
/// The file cannot be read, a line is of another kind, a conversation is longer than `time` or refused by
/// [`Template::encode`], or there is nothing to learn.
///
/// # Panics
///
/// If `time` is below 2.
pub fn read(
    file: &Path,
    folder: &Path,
    tokenizer: &Tokenizer,
    time: usize,
) -> Result<Vec<Text>, TextError> {
    assert!(time >= 2, "a window of {time} tokens has nothing to learn");
    let content = fs::read_to_string(file).map_err(|error| TextError::file(file, error))?;
    let mut texts = Vec::new();
    if file.extension().is_none_or(|it| it != "jsonl") {
        windows(&content, tokenizer, time, &mut texts)?;
    } else {
        let mut template = None;
        let mut add = |line: &str| -> Result<(), TextError> {
            let line: Value = serde_json::from_str(line)
                .map_err(|error| TextError::text(format!("it is no JSON: {error}")))?;
            if let Some(messages) = line["messages"].as_array() {
                let template = match &mut template {
                    Some(template) => template,
                    none => none.insert(Template::open(folder)?),
                };
                let text = template.encode(messages, tokenizer)?;
                let length = text.tokens.len();
                if length > time {
                    return Err(TextError::text(format!(
                        "a conversation of {length} tokens is longer than the context of {time}"
                    )));
                }
                texts.push(text);
                return Ok(());
            }
            let text = line["text"].as_str();
            let text =
                text.ok_or_else(|| TextError::text("it has neither `messages` nor `text`"))?;
            windows(text, tokenizer, time, &mut texts)
        };
        for (line, content) in content.lines().enumerate() {
            if !content.trim().is_empty() {
                add(content).map_err(|error| TextError::Line {
                    file: file.into(),
                    line: line + 1,
                    source: Box::new(error),
                })?;
            }
        }
    }
    texts.retain(|text| text.counts.iter().skip(1).any(|&counts| counts));
    match texts.is_empty() {
        true => Err(TextError::contents(file, "there is nothing to learn")),
        false => Ok(texts),
    }
}

/// Appends windows that overlap by a token, so that each token is learned once.
fn windows(
    text: &str,
    tokenizer: &Tokenizer,
    time: usize,
    into: &mut Vec<Text>,
) -> Result<(), TextError> {
    let encoding = tokenizer.encode_fast(text, true);
    let encoding = encoding.map_err(|error| TextError::text(error.to_string()))?;
    let tokens = encoding.get_ids();
    for start in (0..tokens.len().saturating_sub(1)).step_by(time - 1) {
        let tokens = tokens[start..tokens.len().min(start + time)].to_vec();
        let counts = vec![true; tokens.len()];
        into.push(Text { tokens, counts });
    }
    Ok(())
}
