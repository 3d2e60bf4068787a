use std::sync::Arc;

use burn::data::dataset::InMemDataset;

use super::{
    WordTokenizer,
    grammar::{Grammar, reviews},
};

/// The names of the labels.
pub const CLASSES: [&str; 2] = ["bad", "good"];

/// A text and its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextClassificationItem {
    /// The text, with spaces between words and punctuation.
    pub text: String,
    /// Index into [`CLASSES`].
    pub label: usize,
}

/// A corpus of generated product reviews, the same on every machine.
#[derive(Clone, Debug)]
pub struct Reviews {
    grammar: Grammar,
}

impl Reviews {
    /// Creates a corpus with this number of product names.
    ///
    /// # Panics
    ///
    /// If there are not that many names: the grammar has about 8000.
    pub fn new(names: usize) -> Self {
        Self {
            grammar: Grammar::new(names),
        }
    }

    /// A tokenizer for the words of the reviews.
    pub fn tokenizer(&self) -> Arc<WordTokenizer> {
        Arc::new(WordTokenizer::new(self.grammar.words()))
    }

    /// The training reviews.
    pub fn train(&self, len: usize) -> InMemDataset<TextClassificationItem> {
        self.split(len, 1)
    }

    /// The validation reviews.
    pub fn valid(&self, len: usize) -> InMemDataset<TextClassificationItem> {
        self.split(len, 2)
    }

    fn split(&self, len: usize, seed: u64) -> InMemDataset<TextClassificationItem> {
        let items = reviews(&self.grammar, len.div_ceil(2), seed)
            .into_iter()
            .take(len)
            .map(|review| TextClassificationItem {
                text: review.text,
                label: usize::from(review.is_good),
            });
        InMemDataset::new(items.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::data::dataset::Dataset;
    use std::collections::HashSet;

    #[test]
    fn is_reproducible_and_has_disjoint_splits() {
        let texts = |items: InMemDataset<TextClassificationItem>| -> Vec<_> {
            items.iter().map(|item| item.text).collect()
        };
        let reviews = Reviews::new(3000);
        let train = texts(reviews.train(501));
        assert_eq!(train.len(), 501);
        assert_eq!(train, texts(Reviews::new(3000).train(501)));
        let train: HashSet<_> = train.into_iter().collect();
        let valid = texts(reviews.valid(500));
        assert!(valid.iter().all(|text| !train.contains(text)));
    }
}
