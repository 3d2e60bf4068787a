//! Settings of the optimizer that change gradients: the weights and losses are those of Burn's own
//! strategy, whose `TrainStep::optimize` does the same by hand, in one run and resumed.

mod settings;

use std::sync::{Arc, Mutex};

use burn::train::Learner;
use burn_lean::optim::{Bf16Weights, InOnePass, MasterWeights24};
use burn_lean::train::{GradientReleaseStrategy, PeakMemory, StepMonitor, release_learner};
use burn_lean::{Alone, DataParallel, LossScaler, MixedPrecision, Replicas};
use lean_arithmetic::clipping::{AutoClip, AutoClipRule};

use super::harness::{BATCHES, ByHand, Directory, Mode, Net, Run, Training, User, rates};
use crate::clipping::by_hand::{clip_global, global_norm};
use crate::harness::prelude::*;

const EPOCHS: usize = 2;
const MAX_NORM: f64 = 0.5;
/// So large that gradients overflow.
const RESIDUALS: f64 = 8.0;

/// A gradient by hand for each parameter that has one; `None` leaves it out.
trait EachGradient {
    fn change<const D: usize>(
        &mut self,
        param: &Param<Tensor<D>>,
        grad: Tensor<D>,
    ) -> Option<Tensor<D>>;
}

fn each(model: &Net, grads: &mut GradientsParams, change: &mut impl EachGradient) {
    struct Each<'a, C>(&'a mut GradientsParams, &'a mut C);
    impl<C: EachGradient> ModuleVisitor for Each<'_, C> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let grad = self.0.remove::<D>(param.id);
            if let Some(grad) = grad.and_then(|grad| self.1.change(param, grad)) {
                self.0.register(param.id, grad);
            }
        }
    }
    model.visit(&mut Each(grads, change));
}

fn squares<const D: usize>(tensor: &Tensor<D>) -> f64 {
    let sum = tensor.clone().square().sum().into_data();
    sum.iter::<f64>().next().unwrap()
}

struct GlobalNorm;

impl ByHand for GlobalNorm {
    fn change(&self, model: &Net, grads: &mut GradientsParams) {
        clip_global(model, grads, MAX_NORM);
    }
}

/// By a quantile of the norms of each gradient so far.
#[derive(Default)]
struct ByQuantiles(Mutex<AutoClip>);

const QUANTILES: AutoClipRule = AutoClipRule {
    percentile: 25.0,
    history: 10,
};

impl ByHand for ByQuantiles {
    fn change(&self, model: &Net, grads: &mut GradientsParams) {
        struct Clip<'a>(&'a mut AutoClip);
        impl EachGradient for Clip<'_> {
            fn change<const D: usize>(
                &mut self,
                param: &Param<Tensor<D>>,
                grad: Tensor<D>,
            ) -> Option<Tensor<D>> {
                let norm = squares(&grad).sqrt();
                let coefficient = self.0.coefficient(&QUANTILES, param.id.val(), norm);
                Some(match coefficient < 1.0 {
                    true => grad * coefficient,
                    false => grad,
                })
            }
        }
        each(model, grads, &mut Clip(&mut self.0.lock().unwrap()));
    }
}

/// The scale of a loss, which is so high that gradients overflow now and then.
struct Scaled {
    /// A gradient that has overflowed skips the step of all parameters.
    skips_all: bool,
    max_norm: Option<f64>,
    state: Mutex<(f64, usize)>,
}

const FIRST_SCALE: f64 = (1_u128 << 126) as f64;
const GROWTH_INTERVAL: usize = 3;

fn scaled(skips_all: bool, max_norm: Option<f64>) -> Scaled {
    Scaled {
        skips_all,
        max_norm,
        state: Mutex::new((FIRST_SCALE, 0)),
    }
}

impl ByHand for Scaled {
    fn scale(&self) -> f64 {
        self.state.lock().unwrap().0
    }

    fn change(&self, model: &Net, grads: &mut GradientsParams) {
        struct Unscale(f64, usize);
        impl EachGradient for Unscale {
            fn change<const D: usize>(
                &mut self,
                _: &Param<Tensor<D>>,
                grad: Tensor<D>,
            ) -> Option<Tensor<D>> {
                let grad = grad * self.0;
                let is_finite = squares(&grad).is_finite();
                self.1 += usize::from(!is_finite);
                is_finite.then_some(grad)
            }
        }
        let (current, good) = &mut *self.state.lock().unwrap();
        let mut unscale = Unscale(1.0 / *current, 0);
        each(model, grads, &mut unscale);
        *good += 1;
        if unscale.1 > 0 {
            (*current, *good) = (*current * 0.5, 0);
            if self.skips_all {
                *grads = GradientsParams::new();
            }
        } else if *good == GROWTH_INTERVAL {
            (*current, *good) = ((*current * 2.0).min(FIRST_SCALE), 0);
        }
        if let Some(max_norm) = self.max_norm {
            clip_global(model, grads, max_norm);
        }
    }
}

fn scaler() -> LossScaler {
    LossScalerConfig::new()
        .with_init_scale(FIRST_SCALE)
        .with_growth_interval(GROWTH_INTERVAL)
        .init()
}

/// A setting, and what plain Burn does by hand.
struct Case {
    what: &'static str,
    clipping: Option<NormClipping>,
    is_scaled: bool,
    has_two_passes: bool,
    by_hand: Arc<dyn ByHand>,
}

impl Case {
    fn clips(what: &'static str, clipping: NormClipping, by_hand: impl ByHand + 'static) -> Self {
        Self {
            what,
            clipping: Some(clipping),
            is_scaled: false,
            has_two_passes: clipping.needs_two_passes(),
            by_hand: Arc::new(by_hand),
        }
    }

    /// For gradients that overflow.
    fn residuals(&self) -> Option<f64> {
        self.is_scaled.then_some(RESIDUALS)
    }

    /// A new optimizer, as of a new process.
    fn released(&self, training: &Training) -> Training {
        let scaler = self.is_scaled.then(scaler);
        let (clipping, held) = (self.clipping, scaler.clone());
        Training {
            model: Net {
                user: User {
                    scaler,
                    residuals: self.residuals(),
                    ..User::default()
                },
                ..training.model.clone()
            },
            settings: Arc::new(move |mut optim: ReleaseOptimizer| {
                if let Some(clipping) = clipping {
                    optim = optim.with_norm_clipping(clipping);
                }
                if let Some(scaler) = &held {
                    optim = optim.with_loss_scaler(scaler.clone());
                }
                optim
            }),
            has_two_passes: self.has_two_passes,
            directory: training.directory.clone(),
            ..training.clone()
        }
    }

    fn stock(&self, training: &Training) -> Run {
        let training = Training {
            model: Net {
                user: User {
                    by_hand: Some(self.by_hand.clone()),
                    residuals: self.residuals(),
                    ..User::default()
                },
                ..training.model.clone()
            },
            ..training.clone()
        };
        training.run(Mode::Stock)
    }
}

/// A rule of two passes and one of one pass; the others take the same way, and are compared with the
/// papers in `clipping`.
fn cases() -> Vec<Case> {
    let auto_clip = AutoClipConfig::new()
        .with_percentile(QUANTILES.percentile)
        .with_history(QUANTILES.history);
    let global = NormClipping::GlobalNorm { max_norm: MAX_NORM };
    let scaling = |what, skips_all, max_norm: Option<f64>| Case {
        what,
        clipping: max_norm.map(|max_norm| NormClipping::GlobalNorm { max_norm }),
        is_scaled: true,
        has_two_passes: skips_all,
        by_hand: Arc::new(scaled(skips_all, max_norm)),
    };
    vec![
        Case::clips("global norm", global, GlobalNorm),
        Case::clips(
            "AutoClip",
            NormClipping::AutoClip(auto_clip),
            ByQuantiles::default(),
        ),
        scaling("loss scaling in one pass", false, None),
        scaling("loss scaling in two passes", true, None),
        scaling("loss scaling and the global norm", true, Some(MAX_NORM)),
    ]
}

/// The losses of the training, each once: of two passes, both have one.
fn once(mut losses: Vec<u32>) -> Vec<u32> {
    losses.dedup();
    losses
}

/// Each setting over two epochs, with and without windows, in two processes: the second knows only
/// the checkpoint.
#[test]
fn changed_as_in_plain_burn_by_hand() {
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
            let what = format!("{}, windows {accumulation:?}", case.what);
            let expected = case.stock(&training);
            assert!(
                !unchanged.contains(&expected.last),
                "{what}: nothing has changed"
            );
            let losses = once(expected.losses);

            let begun = Training {
                epochs: EPOCHS / 2,
                saves: true,
                directory: Directory::temporary(),
                ..training.clone()
            };
            let mut found = case.released(&begun).run(Mode::Released).losses;
            let resumed = Training {
                epochs: EPOCHS,
                checkpoint: Some(EPOCHS / 2),
                ..begun
            };
            let resumed = case.released(&resumed).run(Mode::Released);
            found.extend(resumed.losses);
            assert_eq!(once(found), losses, "{what}");
            assert_bits(&resumed.last, &expected.last, &what);
        }
    }
}

/// Adds up the gradients of windows in f32, also of weights in half precision.
struct SumsInF32 {
    window: usize,
    sums: Mutex<(usize, GradientsParams)>,
}

impl ByHand for SumsInF32 {
    fn change(&self, model: &Net, grads: &mut GradientsParams) {
        struct Add<'a>(&'a mut GradientsParams);
        impl EachGradient for Add<'_> {
            fn change<const D: usize>(
                &mut self,
                param: &Param<Tensor<D>>,
                grad: Tensor<D>,
            ) -> Option<Tensor<D>> {
                let grad = grad.cast(DType::F32);
                let sum = match self.0.remove::<D>(param.id) {
                    Some(sum) => sum + grad,
                    None => grad,
                };
                self.0.register(param.id, sum);
                None
            }
        }
        let (count, sums) = &mut *self.sums.lock().unwrap();
        each(model, grads, &mut Add(sums));
        *count += 1;
        if count.is_multiple_of(self.window) {
            *grads = std::mem::take(sums);
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
            sums: Mutex::default(),
        }));
        let expected = stock.run(Mode::Stock);
        training.accumulation = Some(window);
        training.settings = Arc::new(ReleaseOptimizer::with_f32_gradients);
        let found = training.run(Mode::Released);
        assert_bits(&found.last, &expected.last, &format!("windows of {window}"));
        assert_eq!(found.losses, expected.losses);
    }
}
