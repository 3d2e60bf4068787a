use std::collections::HashMap;

/// Splits texts at spaces; a word is a token.
#[derive(Clone, Debug)]
pub struct WordTokenizer {
    tokens: HashMap<String, usize>,
}

impl WordTokenizer {
    /// Pads a review to the length of the longest in its batch.
    pub const PAD: usize = 0;
    /// Starts every review; the classifier reads this position.
    pub const START: usize = 1;
    /// Replaces every word that is not in the vocabulary.
    pub const UNKNOWN: usize = 2;

    /// Creates a tokenizer for distinct words.
    pub fn new<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let tokens = words.into_iter().map(String::from).zip(3..).collect();
        Self { tokens }
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str) -> Vec<usize> {
        let token = |word| self.tokens.get(word).copied().unwrap_or(Self::UNKNOWN);
        let words = text.split_whitespace().map(token);
        [Self::START].into_iter().chain(words).collect()
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        3 + self.tokens.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_known_and_unknown_words() {
        let tokenizer = WordTokenizer::new(["not", "good"]);
        assert_eq!(tokenizer.encode("not  so good"), [1, 3, 2, 4]);
        assert_eq!(tokenizer.encode(""), [1]);
        assert_eq!(tokenizer.vocab_size(), 5);
    }
}
