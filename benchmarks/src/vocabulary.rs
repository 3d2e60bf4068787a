//! The largest vocabulary that gradient release trains within the peak that plain Burn needs for
//! the decoder's own.

use crate::gpt::GptConfig;
use crate::results::{Arithmetic, BurnVersion, Case, Checkpointing, Mode, Subject, Vocabulary};
use crate::shape::Shape;
use vit_0_21::config::BackendKind;

/// Vocabularies are multiples of this, as they are in practice.
const STEP: usize = 64;

/// Measurements after the first two.
const ATTEMPTS: usize = 4;

/// Searches the vocabulary of the decoder `model`; `peak` measures the peak of a run.
///
/// The peak is nearly linear in the vocabulary.
pub fn search(
    model: &str,
    preset: &GptConfig,
    backend: BackendKind,
    arithmetic: Arithmetic,
    mut peak: impl FnMut(&Case, &Subject) -> Option<u64>,
) -> Option<Vocabulary> {
    let subject = |mode: Mode| Subject::Burn {
        burn: BurnVersion::V0_21,
        backend,
        fusion: true,
        mode,
        checkpointing: Checkpointing::None,
        arithmetic,
    };
    let mut peak = |mode: Mode, vocabulary: usize| {
        let mut config = preset.clone();
        config.vocabulary = vocabulary;
        let case = Case {
            name: format!("{model}, vocabulary {vocabulary}"),
            model: Shape::Gpt(config),
            batch_size: 1,
        };
        peak(&case, &subject(mode))
    };
    let plain = peak(Mode::Plain, preset.vocabulary)?;
    let first = (preset.vocabulary, peak(Mode::Release, preset.vocabulary)?);
    let measured = close_in(first, plain, |vocabulary| peak(Mode::Release, vocabulary))?;
    let fits = measured.iter().filter(|(_, bytes)| *bytes <= plain);
    let best = *fits
        .max_by_key(|(vocabulary, _)| *vocabulary)
        .unwrap_or(&first);
    Some(Vocabulary {
        model: model.into(),
        place: subject(Mode::Release).place(),
        arithmetic,
        vocabulary: preset.vocabulary,
        plain_peak_bytes: plain,
        release_peak_bytes: first.1,
        release_vocabulary: best.0,
        release_vocabulary_peak_bytes: best.1,
        measured,
    })
}

/// Extrapolates the last two measurements to `budget`, until the largest vocabulary that fits is
/// known to one [`STEP`] (secant method).
fn close_in(
    first: (usize, u64),
    budget: u64,
    mut peak: impl FnMut(usize) -> Option<u64>,
) -> Option<Vec<(usize, u64)>> {
    let mut measured = vec![first];
    if first.1 >= budget {
        return Some(measured);
    }
    let second = round_down(first.0 * 3 / 2).max(first.0 + STEP);
    measured.push((second, peak(second)?));
    for _ in 0..ATTEMPTS {
        let (a, b) = (measured[measured.len() - 2], measured[measured.len() - 1]);
        let slope = (b.1 as f64 - a.1 as f64) / (b.0 as f64 - a.0 as f64);
        if slope <= 0.0 {
            break;
        }
        let guess = b.0 as f64 + (budget as f64 - b.1 as f64) / slope;
        let fits = |(vocabulary, bytes): &(usize, u64)| (*bytes <= budget).then_some(*vocabulary);
        let most = measured.iter().filter_map(fits).max().unwrap_or(first.0);
        let least_too_many = measured
            .iter()
            .filter(|point| fits(point).is_none())
            .map(|(vocabulary, _)| *vocabulary)
            .min();
        let mut next = round_down(guess as usize).max(most + STEP);
        if let Some(too_many) = least_too_many {
            if too_many <= most + STEP {
                break;
            }
            next = next.min(too_many - STEP);
        }
        if measured.iter().any(|(vocabulary, _)| *vocabulary == next) {
            break;
        }
        measured.push((next, peak(next)?));
    }
    Some(measured)
}

fn round_down(vocabulary: usize) -> usize {
    vocabulary / STEP * STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest(budget: u64, peak: impl Fn(usize) -> u64) -> usize {
        let first = (1000, peak(1000));
        let measured = close_in(first, budget, |vocabulary| Some(peak(vocabulary))).unwrap();
        assert!(measured.len() <= 2 + ATTEMPTS);
        let fits = measured.iter().filter(|(_, bytes)| *bytes <= budget);
        fits.map(|(vocabulary, _)| *vocabulary).max().unwrap()
    }

    #[test]
    fn a_linear_peak_is_solved_to_one_step() {
        let line = |vocabulary: usize| 5000 + 3 * vocabulary as u64;
        let best = largest(20_000, line);
        assert!(line(best) <= 20_000 && line(best + STEP) > 20_000, "{best}");
    }

    #[test]
    fn a_peak_with_a_bend_is_solved_too() {
        let bent = |vocabulary: usize| (5000 + vocabulary as u64).max(4 * vocabulary as u64);
        let best = largest(20_000, bent);
        assert!(bent(best) <= 20_000 && bent(best + STEP) > 20_000, "{best}");
    }

    #[test]
    fn without_a_saving_the_vocabulary_stays() {
        let measured = close_in((1000, 7), 7, |_| None).unwrap();
        assert_eq!(measured, [(1000, 7)]);
    }
}
