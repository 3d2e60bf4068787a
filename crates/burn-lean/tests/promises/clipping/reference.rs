//! Clipped gradients against values of PyTorch and of the papers' rules, which
//! `tests/promises/reference/clipping.py` has written for both lines of Burn.
//!
//! A parameter whose product with a constant is the loss has that constant for its gradient, and
//! SGD at rate one takes the clipped gradient off it.

use burn::module::{Module, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Tensor, TensorData};
use burn_lean::{
    AdaptiveClippingConfig, AutoClipConfig, NormClipping, ReleaseOptimizer, WithGradientRelease,
    ZClipConfig,
};
use serde::Deserialize;

use crate::harness::flex;

/// The reference is in 64 bits; relative, of values around one.
const TOLERANCE: f64 = 2e-6;

#[derive(Clone, Deserialize)]
struct Values {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Values {
    fn tensor<const D: usize>(&self) -> Tensor<D> {
        let data = TensorData::new(self.values.clone(), self.shape.clone());
        Tensor::from_data(data, &flex())
    }

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
    let text = include_str!("../../../../../tests/promises/reference/clipping.json");
    serde_json::from_str(text).expect("the script wrote it")
}

#[derive(Module, Debug)]
struct Free {
    vectors: Vec<Param<Tensor<1>>>,
    matrices: Vec<Param<Tensor<2>>>,
    cubes: Vec<Param<Tensor<3>>>,
    kernels: Vec<Param<Tensor<4>>>,
}

impl Free {
    fn new(weights: &[Values]) -> Self {
        fn of<const D: usize>(weights: &[Values]) -> Vec<Param<Tensor<D>>> {
            let of_rank = weights.iter().filter(|values| values.shape.len() == D);
            of_rank
                .map(|values| Param::from_tensor(values.tensor()))
                .collect()
        }
        Self {
            vectors: of(weights),
            matrices: of(weights),
            cubes: of(weights),
            kernels: of(weights),
        }
    }

    /// Has these gradients.
    fn loss(&self, gradients: &[Values]) -> Tensor<1> {
        fn of<const D: usize>(params: &[Param<Tensor<D>>], gradients: &[Values]) -> Vec<Tensor<1>> {
            let of_rank = gradients.iter().filter(|values| values.shape.len() == D);
            let pairs = params.iter().zip(of_rank);
            pairs
                .map(|(param, values)| (param.val() * values.tensor()).sum())
                .collect()
        }
        let parts = [
            of(&self.vectors, gradients),
            of(&self.matrices, gradients),
            of(&self.cubes, gradients),
            of(&self.kernels, gradients),
        ];
        parts
            .into_iter()
            .flatten()
            .reduce(|one, other| one + other)
            .unwrap()
    }

    fn values(&self, shape: &[usize]) -> Vec<f32> {
        fn of<const D: usize>(params: &[Param<Tensor<D>>], shape: &[usize]) -> Option<Vec<f32>> {
            let mut params = params.iter().map(|param| param.val());
            let found = params.find(|value| value.dims()[..] == *shape)?;
            Some(found.into_data().iter::<f32>().collect())
        }
        of(&self.vectors, shape)
            .or_else(|| of(&self.matrices, shape))
            .or_else(|| of(&self.cubes, shape))
            .or_else(|| of(&self.kernels, shape))
            .unwrap()
    }
}

fn optim(clipping: NormClipping) -> ReleaseOptimizer {
    let optim = SgdConfig::new().init().with_gradient_release();
    optim.with_norm_clipping(clipping)
}

/// The weights after one step with these gradients, armed or not.
fn step(
    optim: &mut ReleaseOptimizer,
    weights: &[Values],
    gradients: &[Values],
    is_armed: bool,
) -> Free {
    step_on(optim, Free::new(weights), gradients, is_armed)
}

fn step_on(
    optim: &mut ReleaseOptimizer,
    mut model: Free,
    gradients: &[Values],
    is_armed: bool,
) -> Free {
    if is_armed && optim.needs_two_passes() {
        return optim
            .two_passes(1.0, model, |model| model.loss(gradients))
            .0;
    }
    if is_armed {
        model = optim.arm(1.0, model);
    }
    let grads = GradientsParams::from_grads(model.loss(gradients).backward(), &model);
    optim.step(1.0, model, grads)
}

#[track_caller]
fn assert_near(found: f64, expected: f64, context: &str) {
    let error = (found - expected).abs() / expected.abs().max(1.0);
    assert!(error <= TOLERANCE, "{context}: {found}, not {expected}");
}

#[test]
fn global_norm_is_that_of_pytorch() {
    for case in reference().global_norm {
        let rule = NormClipping::GlobalNorm {
            max_norm: case.max_norm,
        };
        let zeros: Vec<_> = case.gradients.iter().map(Values::zeros).collect();
        for is_armed in [true, false] {
            let mut optim = optim(rule);
            let model = step(&mut optim, &zeros, &case.gradients, is_armed);
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
}

#[test]
fn adaptive_clipping_is_that_of_the_paper() {
    let Adaptive {
        clipping,
        epsilon,
        cases,
    } = reference().adaptive;
    let config = AdaptiveClippingConfig::new()
        .with_clip_factor(clipping)
        .with_eps(epsilon);
    for (case, is_armed) in cases.iter().flat_map(|case| [(case, true), (case, false)]) {
        let mut optim = optim(NormClipping::Adaptive(config));
        let (weight, gradient) = ([case.weight.clone()], [case.gradient.clone()]);
        let model = step(&mut optim, &weight, &gradient, is_armed);
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
    for (run, is_armed) in auto.runs.iter().flat_map(|run| [(run, true), (run, false)]) {
        let config = AutoClipConfig::new().with_percentile(run.percentile);
        let mut optim = optim(NormClipping::AutoClip(config));
        // The same parameter all the time: it has the history.
        let mut model = Free::new(&[auto.gradients[0].zeros()]);
        let steps = auto.gradients.iter().zip(&run.clipped_norm);
        for (number, (gradient, expected)) in steps.enumerate() {
            let before = model.values(&gradient.shape);
            model = step_on(&mut optim, model, std::slice::from_ref(gradient), is_armed);
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
            let (weight, gradient) = ([gradient.zeros()], [gradient]);
            let model = step(&mut optim, &weight, &gradient, is_armed);
            let found = -f64::from(model.values(&[1])[0]);
            assert_near(found, clip.unwrap_or(*norm), &format!("step {number}"));
            clipped += usize::from(clip.is_some());
        }
        assert!(clipped > 3);
    }
}
