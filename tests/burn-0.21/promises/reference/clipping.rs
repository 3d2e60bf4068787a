//! Clipped gradients against values of PyTorch and of the papers' rules, which `clipping.py` has
//! written, for both lines of Burn: each mounts this file below a module with a model and its step.
//!
//! A parameter whose product with a constant is the loss has that constant for its gradient, and
//! SGD at rate one takes the clipped gradient off it.

use serde::Deserialize;

use super::{
    AdaptiveClippingConfig, AutoClipConfig, Model, NormClipping, ZClipConfig, optim, step,
};

/// The reference is in 64 bits; relative, of values around one.
const TOLERANCE: f64 = 2e-6;

#[derive(Clone, Deserialize)]
pub(super) struct Values {
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<f32>,
}

impl Values {
    fn zeros(&self) -> Self {
        Self {
            shape: self.shape.clone(),
            values: vec![0.0; self.values.len()],
        }
    }
}

#[derive(Deserialize)]
struct Reference {
    global_norm: Vec<GlobalNorm>,
    adaptive: Adaptive,
    auto: Auto,
    z_score: ZScore,
}

#[derive(Deserialize)]
struct GlobalNorm {
    case: String,
    max_norm: f64,
    gradients: Vec<Values>,
    norm: f64,
    clipped: Vec<Values>,
}

#[derive(Deserialize)]
struct Adaptive {
    clipping: f64,
    epsilon: f64,
    cases: Vec<AdaptiveCase>,
}

#[derive(Deserialize)]
struct AdaptiveCase {
    kind: String,
    weight: Values,
    gradient: Values,
    clipped: Values,
}

#[derive(Deserialize)]
struct Auto {
    gradients: Vec<Values>,
    runs: Vec<AutoRun>,
}

#[derive(Deserialize)]
struct AutoRun {
    percentile: f64,
    clipped_norm: Vec<f64>,
}

#[derive(Deserialize)]
struct ZScore {
    alpha: f64,
    threshold: f64,
    warm_up: usize,
    norms: Vec<f64>,
    clip: Vec<Option<f64>>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("clipping.json")).expect("the script wrote it")
}

#[track_caller]
fn assert_near(found: f64, expected: f64, context: &str) {
    let error = (found - expected).abs() / expected.abs().max(1.0);
    assert!(error <= TOLERANCE, "{context}: {found}, not {expected}");
}

#[test]
fn global_norm_is_that_of_pytorch() {
    for (case, is_armed) in armed_and_not(&reference().global_norm) {
        let max_norm = case.max_norm;
        let mut optim = optim(NormClipping::GlobalNorm { max_norm });
        let zeros: Vec<_> = case.gradients.iter().map(Values::zeros).collect();
        let model = step(&mut optim, Model::new(&zeros), &case.gradients, is_armed);
        let report = optim.last_step().unwrap();
        assert_near(report.grad_norm().unwrap(), case.norm, &case.case);
        for clipped in &case.clipped {
            let found = model.values(&clipped.shape);
            for (found, expected) in found.iter().zip(&clipped.values) {
                assert_near(-f64::from(*found), f64::from(*expected), &case.case);
            }
        }
    }
}

/// Each case armed, and with an ordinary step.
fn armed_and_not<T>(cases: &[T]) -> impl Iterator<Item = (&T, bool)> {
    cases.iter().flat_map(|case| [(case, true), (case, false)])
}

#[test]
fn adaptive_clipping_is_that_of_the_paper() {
    let adaptive = reference().adaptive;
    let config = AdaptiveClippingConfig::new()
        .with_clip_factor(adaptive.clipping)
        .with_eps(adaptive.epsilon);
    for (case, is_armed) in armed_and_not(&adaptive.cases) {
        let mut optim = optim(NormClipping::Adaptive(config));
        let model = Model::new(std::slice::from_ref(&case.weight));
        let gradient = std::slice::from_ref(&case.gradient);
        let model = step(&mut optim, model, gradient, is_armed);
        let found = model.values(&case.clipped.shape);
        let pairs = case.weight.values.iter().zip(&case.clipped.values);
        for (found, (weight, expected)) in found.iter().zip(pairs) {
            assert_near(f64::from(weight - found), f64::from(*expected), &case.kind);
        }
    }
}

#[test]
fn auto_clip_is_that_of_the_paper() {
    let auto = reference().auto;
    for (run, is_armed) in armed_and_not(&auto.runs) {
        let config = AutoClipConfig::new().with_percentile(run.percentile);
        let mut optim = optim(NormClipping::AutoClip(config));
        // The same parameter all the time: it has the history. Another one has a history of its own.
        let other = Values {
            shape: vec![1, 2],
            values: vec![1e3, 0.0],
        };
        let mut model = Model::new(&[auto.gradients[0].zeros(), other.zeros()]);
        let steps = auto.gradients.iter().zip(&run.clipped_norm);
        for (number, (gradient, expected)) in steps.enumerate() {
            let before = model.values(&gradient.shape);
            let gradients = [gradient.clone(), other.clone()];
            model = step(&mut optim, model, &gradients, is_armed);
            let after = model.values(&gradient.shape);
            let pairs = before.iter().zip(&after);
            let squares = pairs.map(|(before, after)| f64::from(before - after).powi(2));
            // The weights have grown to some hundreds, whose difference is rounded.
            let found = squares.sum::<f64>().sqrt();
            assert!(
                (found - expected).abs() < 1e-4,
                "step {number}: {found}, not {expected}"
            );
        }
    }
}

#[test]
fn zclip_is_that_of_the_paper() {
    let reference = reference().z_score;
    let config = ZClipConfig::new()
        .with_alpha(reference.alpha)
        .with_z_threshold(reference.threshold)
        .with_warm_up(reference.warm_up);
    for is_armed in [true, false] {
        let mut optim = optim(NormClipping::ZClip(config));
        let mut clipped = 0;
        for (number, (norm, clip)) in reference.norms.iter().zip(&reference.clip).enumerate() {
            let gradient = Values {
                shape: vec![1],
                values: vec![*norm as f32],
            };
            let model = Model::new(&[gradient.zeros()]);
            let model = step(&mut optim, model, &[gradient], is_armed);
            let found = -f64::from(model.values(&[1])[0]);
            assert_near(found, clip.unwrap_or(*norm), &format!("step {number}"));
            clipped += usize::from(clip.is_some());
        }
        assert!(clipped > 3);
    }
}
