//! Texts as tokens, and batches of them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::chat::Template;
use crate::config::ModelConfig;
use crate::model::Batch;

/// Tokens, and which of them are to be learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// Ids in the vocabulary.
    pub tokens: Vec<u32>,
    /// Whether the loss of a token counts.
    pub counts: Vec<bool>,
}

/// Texts in an order that a seed decides.
#[derive(Debug)]
pub struct Data {
    texts: Vec<Text>,
    order: Vec<usize>,
    random: Xoshiro256PlusPlus,
}

/// The tokenizer of a model.
///
/// # Errors
///
/// It is not there, has tokens that the model has not, or lacks those that the model begins and ends
/// with.
pub fn tokenizer(folder: &Path, config: &ModelConfig) -> Result<Tokenizer> {
    let path = folder.join("tokenizer.json");
    let tokenizer = Tokenizer::from_file(&path);
    let tokenizer = tokenizer.map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let last = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
    let (name, vocabulary) = (path.display(), config.vocabulary);
    ensure!(
        (last as usize) < vocabulary,
        "{name} has a token {last}, and the model {vocabulary} tokens: it is of another model, or the vocabulary \
         was resized"
    );
    let is_missing = |token: &&u32| tokenizer.id_to_token(**token).is_none();
    if let Some(token) = config.special_tokens.iter().find(is_missing) {
        bail!("{name} has no token {token}, which config.json names: it is of another model");
    }
    Ok(tokenizer)
}

impl Data {
    /// Reads a file: JSON lines of `{"messages": [..]}` or `{"text": ..}` if its name ends in `.jsonl`, else
    /// plain text, which is cut into windows of `time` tokens.
    ///
    /// # Errors
    ///
    /// The file cannot be read, a line is of another kind, or a conversation is longer than `time`.
    pub fn open(
        path: &Path,
        folder: &Path,
        tokenizer: &Tokenizer,
        time: usize,
        seed: u64,
    ) -> Result<Self> {
        let name = path.display();
        let content = fs::read_to_string(path).with_context(|| name.to_string())?;
        let mut texts = Vec::new();
        if path.extension().is_some_and(|it| it == "jsonl") {
            let mut template = None;
            for (number, line) in content.lines().enumerate() {
                let mut add = || -> Result<()> {
                    let line: Value = serde_json::from_str(line).context("it is no JSON")?;
                    if let Some(messages) = line["messages"].as_array() {
                        let template = match &mut template {
                            Some(template) => template,
                            none => none.insert(Template::open(folder)?),
                        };
                        let text = template.encode(messages, tokenizer)?;
                        ensure!(
                            text.tokens.len() <= time,
                            "a conversation of {} tokens is longer than the context of {time}",
                            text.tokens.len()
                        );
                        texts.push(text);
                    } else {
                        let text = line["text"].as_str();
                        let text = text.context("it has neither `messages` nor `text`")?;
                        windows(text, tokenizer, time, &mut texts)?;
                    }
                    Ok(())
                };
                if !line.trim().is_empty() {
                    add().with_context(|| format!("{name}, line {}", number + 1))?;
                }
            }
        } else {
            windows(&content, tokenizer, time, &mut texts)?;
        }
        // The first token follows nothing.
        texts.retain(|text| text.counts.iter().skip(1).any(|&counts| counts));
        ensure!(!texts.is_empty(), "{name} has nothing to learn");
        Ok(Self {
            texts,
            order: Vec::new(),
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
        })
    }

    /// How many texts there are.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are none, which `open` refuses.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The next texts. Each comes once before any comes again.
    pub fn next(&mut self, texts: usize, device: &Device) -> Batch {
        let chosen: Vec<_> = (0..texts).map(|_| self.draw()).collect();
        let chosen: Vec<_> = chosen.into_iter().map(|at| &self.texts[at]).collect();
        batch(&chosen, device)
    }

    /// Passes over texts that were learned before.
    pub fn skip(&mut self, texts: usize) {
        for _ in 0..texts {
            self.draw();
        }
    }

    /// The place of the next text.
    fn draw(&mut self) -> usize {
        if self.order.is_empty() {
            self.order = (0..self.texts.len()).collect();
        }
        let at = self.random.next_u64() as usize % self.order.len();
        self.order.swap_remove(at)
    }

    /// All texts, one after the other.
    pub fn all<'a>(&'a self, device: &'a Device) -> impl Iterator<Item = Batch> + 'a {
        self.texts.iter().map(|text| batch(&[text], device))
    }
}

/// Appends windows that overlap by a token, so that each token is learned once.
fn windows(text: &str, tokenizer: &Tokenizer, time: usize, into: &mut Vec<Text>) -> Result<()> {
    let encoding = tokenizer.encode_fast(text, true);
    let encoding = encoding.map_err(|error| anyhow!("the tokenizer: {error}"))?;
    let tokens = encoding.get_ids();
    for start in (0..tokens.len().saturating_sub(1)).step_by(time - 1) {
        let tokens = tokens[start..tokens.len().min(start + time)].to_vec();
        let counts = vec![true; tokens.len()];
        into.push(Text { tokens, counts });
    }
    Ok(())
}

/// Pads texts at their ends, where no token of theirs sees it and no loss counts.
fn batch(texts: &[&Text], device: &Device) -> Batch {
    let time = texts
        .iter()
        .map(|text| text.tokens.len())
        .max()
        .unwrap_or(0);
    let (mut tokens, mut places, mut targets) = (Vec::new(), Vec::new(), Vec::new());
    for (row, text) in texts.iter().enumerate() {
        for at in 1..text.tokens.len() {
            if text.counts[at] {
                places.push((row * time + at - 1) as i32);
                targets.push(text.tokens[at] as i32);
            }
        }
        let padding = std::iter::repeat_n(0, time - text.tokens.len());
        tokens.extend(text.tokens.iter().map(|&token| token as i32).chain(padding));
    }
    let line =
        |values: Vec<i32>| -> Tensor<1, Int> { Tensor::from_data(values.as_slice(), device) };
    Batch {
        tokens: Tensor::from_data(TensorData::new(tokens, [texts.len(), time]), device),
        places: line(places),
        targets: line(targets),
    }
}
