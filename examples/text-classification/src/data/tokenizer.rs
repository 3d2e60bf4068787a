use std::collections::HashMap;

/// Splits at spaces; a word is a token.
#[derive(Clone, Debug)]
pub struct WordTokenizer {
    tokens: HashMap<String, usize>,
}

impl WordTokenizer {
    /// Fills a review up to the length of the longest in its batch.
    pub const PAD: usize = 0;
    /// Begins every review: the place the verdict is read from.
    pub const START: usize = 1;
    /// Stands for every word that is not in the vocabulary.
    pub const UNKNOWN: usize = 2;

    /// Knows these words, each given once.
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

    /// How many tokens there are.
    pub fn vocab_size(&self) -> usize {
        3 + self.tokens.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_words_and_what_it_does_not_know() {
        let tokenizer = WordTokenizer::new(["not", "good"]);
        assert_eq!(tokenizer.encode("not  so good"), [1, 3, 2, 4]);
        assert_eq!(tokenizer.encode(""), [1]);
        assert_eq!(tokenizer.vocab_size(), 5);
    }
}
