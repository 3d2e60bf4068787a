//! Conversations as a model's template writes them.

use std::fs;
use std::ops::Range;
use std::path::Path;

use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::error::TextError;
use crate::read::Text;

/// The chat template of a model.
#[derive(Debug)]
pub struct Template {
    jinja: Environment<'static>,
    /// `bos_token` and `eos_token`
    tokens: [String; 2],
}

impl Template {
    /// That of `chat_template.jinja`, or of `tokenizer_config.json`.
    ///
    /// # Errors
    ///
    /// There is none, or it is no template.
    pub fn open(folder: &Path) -> Result<Self, TextError> {
        let path = folder.join("tokenizer_config.json");
        let config = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text),
            Err(_) => Ok(Value::Null),
        };
        let config = config.map_err(|error| TextError::contents(&path, error))?;
        let template = match fs::read_to_string(folder.join("chat_template.jinja")) {
            Ok(template) => template,
            Err(_) => {
                let template = config["chat_template"].as_str().map(str::to_owned);
                let none = "messages need a chat template: neither chat_template.jinja nor \
                    tokenizer_config.json has one";
                template.ok_or_else(|| TextError::text(none))?
            }
        };
        let mut jinja = Environment::new();
        jinja.set_trim_blocks(true);
        jinja.set_lstrip_blocks(true);
        jinja.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        jinja.add_function("raise_exception", |reason: String| -> Result<(), Error> {
            Err(Error::new(ErrorKind::InvalidOperation, reason))
        });
        let added = jinja.add_template_owned("chat", template);
        added.map_err(of_template)?;
        let token = |name: &str| {
            let token = &config[name];
            let text = token.as_str().or(token["content"].as_str());
            text.unwrap_or_default().to_owned()
        };
        let tokens = [token("bos_token"), token("eos_token")];
        Ok(Self { jinja, tokens })
    }

    /// The tokens of a conversation. Those that the assistant says count.
    ///
    /// # Errors
    ///
    /// The template refuses the messages, or writes earlier ones in another way when others follow.
    pub fn encode(&self, messages: &[Value], tokenizer: &Tokenizer) -> Result<Text, TextError> {
        let whole = self.render(messages, false)?;
        let mut spoken = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            if message["role"] == "assistant" {
                let before = self.render(&messages[..at], true)?;
                let after = self.render(&messages[..=at], false)?;
                if !after.starts_with(&before) || !whole.starts_with(&after) {
                    return Err(TextError::text(format!(
                        "the chat template writes message {at} in another way when others follow: give \
                         each of its conversations one answer"
                    )));
                }
                spoken.push(before.len()..after.len());
            }
        }
        if spoken.is_empty() {
            return Err(TextError::text("no message is of the role `assistant`"));
        }
        let encoding = tokenizer.encode(whole, false);
        let encoding = encoding.map_err(|error| TextError::text(error.to_string()))?;
        let counts = |&(from, to): &(usize, usize)| {
            // Some tokenizers give spaces an empty span, at their end.
            let is_in = |it: &Range<usize>| it.start <= from && it.start < to && to <= it.end;
            spoken.iter().any(is_in)
        };
        Ok(Text {
            tokens: encoding.get_ids().to_vec(),
            counts: encoding.get_offsets().iter().map(counts).collect(),
        })
    }

    fn render(&self, messages: &[Value], asks: bool) -> Result<String, TextError> {
        let [bos_token, eos_token] = &self.tokens;
        let values = context! { messages, bos_token, eos_token, add_generation_prompt => asks };
        let rendered = self
            .jinja
            .get_template("chat")
            .and_then(|it| it.render(values));
        rendered.map_err(of_template)
    }
}

fn of_template(error: Error) -> TextError {
    TextError::text(format!("the chat template: {error}"))
}
