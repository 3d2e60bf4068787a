//! Settings of the optimizer that change gradients: the weights and losses are those of Burn's own
//! strategy, whose `TrainStep::optimize` takes ordinary steps with the same settings.

mod settings;

use std::sync::{Arc, Mutex};

use burn::train::Learner;
use burn_lean::optim::{Bf16Weights, InOnePass, MasterWeights24};
use burn_lean::train::{GradientReleaseStrategy, PeakMemory, StepMonitor, release_learner};
use burn_lean::{Alone, DataParallel, LossScaler, MixedPrecision, Replicas};

use super::harness::{BATCHES, ByHand, Directory, Mode, Net, Run, Training, User, rates};
use crate::clipping::by_hand::global_norm;
use crate::harness::prelude::*;
use crate::mixed_precision::sum_in_f32;

const EPOCHS: usize = 2;
const MAX_NORM: f64 = 0.5;
/// So large that gradients overflow.
const RESIDUALS: f64 = 8.0;

const FIRST_SCALE: f64 = (1_u128 << 126) as f64;

fn scaler() -> LossScaler {
    LossScalerConfig::new()
        .with_init_scale(FIRST_SCALE)
        .with_growth_interval(3)
        .init()
}

fn global_norm_clipping() -> NormClipping {
    NormClipping::GlobalNorm { max_norm: MAX_NORM }
}

fn auto_clip() -> NormClipping {
    let config = AutoClipConfig::new().with_percentile(25.0);
    NormClipping::AutoClip(config.with_history(10))
}

/// Clipping and loss scaling of a training. What they do in ordinary steps is compared with plain Burn by
/// hand, and with the papers, in `clipping`.
#[derive(Clone, Copy, Debug)]
struct Case {
    clipping: Option<NormClipping>,
    is_scaled: bool,
}

/// A rule of two passes and one of one pass, and scales so high that whole steps are skipped.
fn cases() -> [Case; 4] {
    let pairs = [
        (Some(global_norm_clipping()), false),
        (Some(auto_clip()), false),
        (None, true),
        (Some(global_norm_clipping()), true),
    ];
    pairs.map(|(clipping, is_scaled)| Case {
        clipping,
        is_scaled,
    })
}

impl Case {
    fn set(self, mut optim: ReleaseOptimizer, scaler: &LossScaler) -> ReleaseOptimizer {
        if let Some(clipping) = self.clipping {
            optim = optim.with_norm_clipping(clipping);
        }
        match self.is_scaled {
            true => optim.with_loss_scaler(scaler.clone()),
            false => optim,
        }
    }

    /// With a new optimizer, as of a new process.
    fn run(self, training: &Training, mode: Mode) -> Run {
        let scaler = scaler();
        let ordinary = || self.set(adamw().with_gradient_release(), &scaler);
        let user = User {
            scaler: self.is_scaled.then(|| scaler.clone()),
            residuals: self.is_scaled.then_some(RESIDUALS),
            stepper: (mode == Mode::Stock).then(|| Arc::new(Mutex::new(ordinary()))),
            ..User::default()
        };
        let mut training = training.clone();
        training.model.user = user;
        training.has_two_passes = self.is_scaled || self.clipping != Some(auto_clip());
        training.settings = Arc::new(move |optim| self.set(optim, &scaler));
        training.run(mode)
    }
}

/// The losses of the training, each once: of two passes, both have one.
fn once(mut losses: Vec<u32>) -> Vec<u32> {
    losses.dedup();
    losses
}

/// Each setting over two epochs, with and without windows, in two processes: the second knows only
/// the checkpoint.
#[test]
fn changed_as_in_ordinary_steps() {
    for accumulation in [None, Some(3)] {
        let training = Training {
            epochs: EPOCHS,
            shuffle: Some(7),
            accumulation,
            ..Training::new(adamw)
        };
        let unchanged = [None, Some(RESIDUALS)].map(|residuals| {
            let mut unchanged = training.clone();
            unchanged.model.user.residuals = residuals;
            unchanged.run(Mode::Stock).last
        });
        for case in cases() {
            let what = format!("{case:?}, windows {accumulation:?}");
            let expected = case.run(&training, Mode::Stock);
            assert!(!unchanged.contains(&expected.last), "{what}: the same");
            let losses = once(expected.losses);

            let begun = Training {
                epochs: EPOCHS / 2,
                saves: true,
                directory: Directory::temporary(),
                ..training.clone()
            };
            let mut found = case.run(&begun, Mode::Released).losses;
            let resumed = Training {
                epochs: EPOCHS,
                checkpoint: Some(EPOCHS / 2),
                ..begun
            };
            let resumed = case.run(&resumed, Mode::Released);
            found.extend(resumed.losses);
            assert_eq!(once(found), losses, "{what}");
            assert_bits(&resumed.last, &expected.last, &what);
        }
    }
}

/// Adds up the gradients of windows in f32, also of weights in half precision.
struct SumsInF32 {
    window: usize,
    held: Mutex<Vec<GradientsParams>>,
}

impl ByHand for SumsInF32 {
    fn change(&self, model: &Net, grads: &mut GradientsParams) {
        let mut held = self.held.lock().unwrap();
        held.push(std::mem::take(grads));
        if held.len() == self.window {
            *grads = sum_in_f32(model, std::mem::take(&mut held));
        }
    }
}

/// Nothing is rounded between the sum of micro-batches and the step.
#[test]
fn an_optimizer_gets_gradients_in_f32() {
    let in_five_bytes = || {
        let head = Bf16Weights::new(
            AdamWConfig::new().in_one_pass(),
            MasterWeights24 { seed: 7 },
        );
        adamw().with_group(ParamGroup::from_predicate("head"), head, None)
    };
    let half = DType::BF16;
    for window in [1, 3] {
        let mut training = Training {
            batches: 24,
            scheduler: || 0.01.into(),
            ..Training::new(in_five_bytes)
        };
        let head = training.model.head;
        training.model.head = MixedPrecision::bf16().cast(head).unwrap();
        training.model.user.half = Some(half);
        let mut stock = training.clone();
        stock.model.user.by_hand = Some(Arc::new(SumsInF32 {
            window,
            held: Mutex::default(),
        }));
        let expected = stock.run(Mode::Stock);
        training.accumulation = Some(window);
        training.settings = Arc::new(ReleaseOptimizer::with_f32_gradients);
        let found = training.run(Mode::Released);
        assert_bits(&found.last, &expected.last, &format!("windows of {window}"));
        assert_eq!(found.losses, expected.losses);
    }
}
