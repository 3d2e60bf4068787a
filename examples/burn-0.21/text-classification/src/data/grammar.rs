//! A small grammar of product reviews.
//!
//! A review has two clauses: *the camera was not good*, *the display seemed superb*. With *and*
//! between them, they agree. With *but*, they disagree and the second one decides; with *although*,
//! the first one. A negation inverts its clause. So the class depends on the order of the words.

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus, seq::IndexedRandom};

const FRAME: [&str; 6] = [".", ":", "although", "and", "but", "the"];
const ASPECTS: [&str; 16] = [
    "battery",
    "box",
    "button",
    "cable",
    "camera",
    "case",
    "charger",
    "display",
    "hinge",
    "keyboard",
    "lens",
    "manual",
    "microphone",
    "price",
    "speaker",
    "strap",
];
const VERBS: [&str; 4] = ["is", "looks", "seemed", "was"];
const NEGATIONS: [&str; 3] = ["hardly", "never", "not"];
/// Pairs of a negative and a positive adjective.
const ADJECTIVES: [[&str; 2]; 16] = [
    ["awful", "superb"],
    ["bad", "good"],
    ["boring", "exciting"],
    ["broken", "flawless"],
    ["cheap", "solid"],
    ["clumsy", "elegant"],
    ["disappointing", "impressive"],
    ["dreadful", "wonderful"],
    ["flimsy", "sturdy"],
    ["horrible", "lovely"],
    ["mediocre", "excellent"],
    ["poor", "great"],
    ["slow", "fast"],
    ["terrible", "fantastic"],
    ["ugly", "beautiful"],
    ["useless", "useful"],
];
const CONSONANTS: &[u8; 18] = b"bcdfghjklmnprstvwz";
const VOWELS: &[u8; 5] = b"aeiou";

/// Generates reviews.
#[derive(Clone, Debug)]
pub(super) struct Grammar {
    names: Vec<String>,
}

/// A sentence with its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Review {
    pub(super) text: String,
    pub(super) is_good: bool,
}

impl Grammar {
    /// Creates a grammar with this number of product names, of two syllables each.
    pub(super) fn new(names: usize) -> Self {
        let syllables: Vec<String> = CONSONANTS
            .iter()
            .flat_map(|consonant| VOWELS.map(|vowel| [*consonant, vowel]))
            .map(|syllable| syllable.map(char::from).iter().collect())
            .collect();
        let names_in_order = syllables
            .iter()
            .flat_map(|first| {
                syllables
                    .iter()
                    .map(move |second| format!("{first}{second}"))
            })
            .filter(|name| english().all(|word| word != name));
        let grammar = Self {
            names: names_in_order.take(names).collect(),
        };
        assert_eq!(grammar.names.len(), names, "there are not so many names");
        grammar
    }

    /// Every word of the vocabulary, once.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        english().chain(self.names.iter().map(String::as_str))
    }

    /// A positive and a negative review of the same product.
    ///
    /// If the clauses agree, the adjectives of one review are the opposites of the other's. If they
    /// disagree, both reviews have the same words.
    pub(super) fn pair(&self, rng: &mut impl RngExt) -> [Review; 2] {
        let frame = Frame::random(&self.names, rng);
        if rng.random() {
            let good = [Predicate::random(true, rng), Predicate::random(true, rng)];
            let bad = good.map(Predicate::opposite);
            [good, bad].map(|clauses| frame.review("and", clauses, clauses[0].is_good))
        } else {
            let [good, bad] = [Predicate::random(true, rng), Predicate::random(false, rng)];
            let (conjunction, deciding) = pick(&[("although", 0), ("but", 1)], rng);
            [[good, bad], [bad, good]]
                .map(|clauses| frame.review(conjunction, clauses, clauses[deciding].is_good))
        }
    }
}

/// The words that do not affect the class.
#[derive(Clone, Debug)]
struct Frame<'a> {
    product: &'a str,
    aspects: [&'static str; 2],
    verbs: [&'static str; 2],
}

impl<'a> Frame<'a> {
    fn random(names: &'a [String], rng: &mut impl RngExt) -> Self {
        Self {
            product: names.choose(rng).expect("a name"),
            aspects: [pick(&ASPECTS, rng), pick(&ASPECTS, rng)],
            verbs: [pick(&VERBS, rng), pick(&VERBS, rng)],
        }
    }

    fn review(&self, conjunction: &str, clauses: [Predicate; 2], is_good: bool) -> Review {
        let Self {
            product,
            aspects,
            verbs,
        } = self;
        let [first, second] = clauses.map(Predicate::text);
        Review {
            text: format!(
                "{product} : the {} {} {first} {conjunction} the {} {} {second} .",
                aspects[0], verbs[0], aspects[1], verbs[1],
            ),
            is_good,
        }
    }
}

/// The words that determine the class.
#[derive(Clone, Copy, Debug)]
struct Predicate {
    negation: Option<&'static str>,
    adjectives: [&'static str; 2],
    is_good: bool,
}

impl Predicate {
    fn random(is_good: bool, rng: &mut impl RngExt) -> Self {
        Self {
            negation: rng.random::<bool>().then(|| pick(&NEGATIONS, rng)),
            adjectives: pick(&ADJECTIVES, rng),
            is_good,
        }
    }

    fn opposite(self) -> Self {
        Self {
            is_good: !self.is_good,
            ..self
        }
    }

    fn text(self) -> String {
        let adjective = self.adjectives[usize::from(self.is_good != self.negation.is_some())];
        [self.negation, Some(adjective)]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" ")
    }
}

fn english<'a>() -> impl Iterator<Item = &'a str> {
    let words: [&[&str]; 5] = [
        &FRAME,
        &ASPECTS,
        &VERBS,
        &NEGATIONS,
        ADJECTIVES.as_flattened(),
    ];
    words.into_iter().flatten().copied()
}

fn pick<T: Copy, const N: usize>(from: &[T; N], rng: &mut impl RngExt) -> T {
    from[rng.random_range(0..N)]
}

/// The reviews of a seed. The generator is portable, unlike `rand`'s `StdRng`.
pub(super) fn reviews(grammar: &Grammar, pairs: usize, seed: u64) -> Vec<Review> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    (0..pairs).flat_map(|_| grammar.pair(&mut rng)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn has_every_word_once() {
        let grammar = Grammar::new(8000);
        let words: BTreeSet<_> = grammar.words().collect();
        assert_eq!(words.len(), grammar.words().count());
    }

    #[test]
    fn uses_only_words_of_the_vocabulary() {
        let grammar = Grammar::new(50);
        let words: BTreeSet<_> = grammar.words().collect();
        for review in reviews(&grammar, 200, 1) {
            for word in review.text.split(' ') {
                assert!(words.contains(word), "{word:?} in {:?}", review.text);
            }
        }
    }

    #[test]
    fn a_bag_of_words_does_not_determine_the_class() {
        let bag = |review: &Review| {
            let mut words: Vec<_> = review.text.split(' ').map(String::from).collect();
            words.sort();
            words
        };
        let reviews = reviews(&Grammar::new(50), 1000, 1);
        let mut same_words = 0;
        for pair in reviews.chunks(2) {
            assert_ne!(pair[0].is_good, pair[1].is_good, "{pair:?}");
            same_words += usize::from(bag(&pair[0]) == bag(&pair[1]));
        }
        // Of such a pair a bag of words gets one right at best: at most 3 reviews in 4 in all.
        assert!((450..550).contains(&same_words), "{same_words} of 1000");
    }
}
