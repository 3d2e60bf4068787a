//! Texts and conversations as tokens.

use std::fs;

use lean_text::{Text, TextError, read, tokenizer};
use tempfile::TempDir;

const WORDS: [&str; 10] = [
    "?",
    "[user]",
    "[assistant]",
    "[end]",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
];

const TEMPLATE: &str = "{% for message in messages %}[{{ message['role'] }}] \
    {{ message['content'].strip() }} [end] {% endfor %}\
    {% if add_generation_prompt %}[assistant] {% endif %}";

/// A folder with a tokenizer of these words, and a chat template.
fn model() -> TempDir {
    let folder = TempDir::new().unwrap();
    let words = WORDS.iter().enumerate();
    let vocabulary: serde_json::Map<_, _> = words
        .map(|(id, word)| (word.to_string(), id.into()))
        .collect();
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "?" },
    });
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    folder
}

fn texts(folder: &TempDir, name: &str, content: &str, time: usize) -> Result<Vec<Text>, TextError> {
    let (folder, file) = (folder.path(), folder.path().join(name));
    fs::write(&file, content).unwrap();
    read(&file, folder, &tokenizer(folder, 10, &[3])?, time)
}

fn error(folder: &TempDir, name: &str, content: &str, time: usize) -> String {
    texts(folder, name, content, time).unwrap_err().to_string()
}

/// The words of each text that are learned.
fn learned(texts: &[Text]) -> Vec<String> {
    let words = |text: &Text| {
        let tokens = text.tokens.iter().zip(&text.counts).skip(1);
        let words = tokens.filter(|(_, counts)| **counts);
        let words: Vec<_> = words.map(|(id, _)| WORDS[*id as usize]).collect();
        words.join(" ")
    };
    texts.iter().map(words).collect()
}

#[test]
fn prompts_carry_no_loss() {
    let line = r#"{"messages": [{"role": "user", "content": "one two"},
        {"role": "assistant", "content": "three four "}, {"role": "user", "content": "five"},
        {"role": "assistant", "content": "six"}]}"#;
    let lines = format!(
        "{}\n\n{{\"text\": \"one two three\"}}\n",
        line.replace('\n', " ")
    );
    let texts = texts(&model(), "text.jsonl", &lines, 24).unwrap();
    assert_eq!(learned(&texts), ["three four [end] six [end]", "two three"]);
}

#[test]
fn each_word_of_a_plain_text_is_learned_once() {
    let texts = texts(&model(), "text.txt", "one two three four five six", 3).unwrap();
    assert_eq!(learned(&texts), ["two three", "four five", "six"]);
}

#[test]
fn texts_that_do_not_fit_are_refused() {
    let folder = model();
    let lines = |content: &str, time| error(&folder, "text.jsonl", content, time);
    let no_json = lines("{\"text\": \"one two\"}\nno JSON\n", 24);
    assert!(
        no_json.contains("text.jsonl, line 2: it is no JSON"),
        "{no_json}"
    );
    let other = lines("{\"prompt\": \"one\"}", 24);
    assert!(other.contains("neither `messages` nor `text`"), "{other}");
    let long = r#"{"messages": [{"role": "assistant", "content": "one two three four"}]}"#;
    let long = lines(long, 5);
    assert!(
        long.contains("of 6 tokens is longer than the context of 5"),
        "{long}"
    );
    let silent = lines(r#"{"messages": [{"role": "user", "content": "one"}]}"#, 24);
    assert!(
        silent.contains("no message is of the role `assistant`"),
        "{silent}"
    );
    let empty = error(&folder, "text.txt", "", 24);
    assert!(
        empty.ends_with("text.txt: there is nothing to learn"),
        "{empty}"
    );
    let gone = read(
        &folder.path().join("gone.txt"),
        folder.path(),
        &tokenizer(folder.path(), 10, &[]).unwrap(),
        24,
    );
    assert!(matches!(gone, Err(TextError::File { .. })));
}

#[test]
fn templates_that_do_not_fit_are_refused() {
    let folder = model();
    let template = |text: &str| fs::write(folder.path().join("chat_template.jinja"), text).unwrap();
    let line = r#"{"messages": [{"role": "assistant", "content": "one"},
        {"role": "assistant", "content": "two"}]}"#;
    let refused = || error(&folder, "text.jsonl", &line.replace('\n', " "), 24);
    // Thoughts of earlier answers are left out by some.
    template(
        "{% for it in messages %}{% if loop.last %}{{ it['content'] }}{% endif %}{% endfor %}",
    );
    let changed = refused();
    assert!(
        changed.contains("writes message 0 in another way when others follow"),
        "{changed}"
    );
    template("{{ raise_exception('roles must alternate') }}");
    let raised = refused();
    assert!(raised.contains("roles must alternate"), "{raised}");
    template("{% for %}");
    let cut = refused();
    assert!(cut.contains("the chat template: "), "{cut}");
    fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    let none = refused();
    assert!(none.contains("messages need a chat template"), "{none}");
    // As models of before have it.
    let config = serde_json::json!({"chat_template": TEMPLATE, "eos_token": {"content": "[end]"}});
    let file = folder.path().join("tokenizer_config.json");
    fs::write(&file, config.to_string()).unwrap();
    texts(&folder, "text.jsonl", &line.replace('\n', " "), 24).unwrap();
    fs::write(&file, "{").unwrap();
    let cut = refused();
    assert!(cut.contains("tokenizer_config.json: "), "{cut}");
}

#[test]
fn tokenizers_of_other_models_are_refused() {
    let folder = model();
    let refused = |vocabulary, special: &[u32]| {
        tokenizer(folder.path(), vocabulary, special)
            .unwrap_err()
            .to_string()
    };
    let larger = refused(9, &[3]);
    assert!(
        larger.contains("it has a token 9, and the model 9 tokens"),
        "{larger}"
    );
    let smaller = refused(100, &[3, 50]);
    assert!(
        smaller.contains("it has no token 50, which the model names"),
        "{smaller}"
    );
    fs::write(folder.path().join("tokenizer.json"), "{").unwrap();
    assert!(refused(10, &[]).contains("tokenizer.json: "));
}
