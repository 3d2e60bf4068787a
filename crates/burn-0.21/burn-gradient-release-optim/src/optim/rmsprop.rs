//! RMSProp.

use burn::{
    grad_clipping::GradientClippingConfig,
    optim::{LearningRate, RmsPropConfig, SimpleOptimizer, decay::WeightDecayConfig},
    record::Record,
    tensor::{Tensor, backend::Backend},
};
use lean_arithmetic::optim::{
    Kind, configuration,
    rules::{Centered, CenteredWithMomentum, CoupledDecay, Plain, Root, WithMomentum},
};
use serde::Deserialize;

use super::{InOnePass, Lean, coupled_decay};
use crate::{LeanBackend, moment::Moment, settings::Settings};

/// Burn's [`RmsProp`](burn::optim::RmsProp) in one pass; made by [`InOnePass::in_one_pass`].
#[derive(Clone, Debug)]
pub struct RmsProp {
    alpha: f32,
    momentum: f32,
    epsilon: f32,
    centered: bool,
    weight_decay: CoupledDecay,
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    alpha: f32,
    momentum: f32,
    epsilon: f32,
    centered: bool,
    weight_decay: Option<WeightDecayConfig>,
    grad_clipping: Option<GradientClippingConfig>,
}

impl InOnePass for RmsPropConfig {
    type Optimizer = RmsProp;

    fn in_one_pass(&self) -> RmsProp {
        let config: Configuration = configuration(self);
        let weight_decay = coupled_decay(config.weight_decay);
        Root::expect_in_range(config.alpha, config.momentum, config.epsilon, weight_decay);
        RmsProp {
            alpha: config.alpha,
            momentum: config.momentum,
            epsilon: config.epsilon,
            centered: config.centered,
            weight_decay,
            settings: Settings::as_burn(config.grad_clipping),
        }
    }
}

impl Lean for RmsProp {
    /// # Panics
    ///
    /// If it is centered, too: the variance is a difference of moments, which may be negative once
    /// they are rounded, and its root NaN.
    fn with_bf16_moments(mut self) -> Self {
        assert!(
            !self.centered,
            "RMSProp: centered is {}: its variance would be a difference of moments that were rounded \
             to bf16, which may be negative; keep the moments in 32 bits",
            self.centered
        );
        self.settings.moments = lean_arithmetic::optim::Moments::expect_bf16(&self.kept_shares());
        self
    }

    fn kept_shares(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("RMSProp: alpha", self.alpha.into()),
            ("RMSProp: momentum", self.momentum.into()),
        ]
    }

    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

/// State of [`RmsProp`], saved as Burn saves it.
#[derive(Record, Clone, Debug)]
pub struct RmsPropState<B: Backend> {
    /// Moving average of squared gradients.
    pub square_avg: SquareAvgState<B>,
    /// The second moment, or the variance, whose root divides the step.
    pub centered: CenteredState<B>,
    /// The momentum, if there is one.
    pub momentum: Option<RmsPropMomentumState<B>>,
}

/// Squares of [`RmsPropState`].
#[derive(Record, Clone, Debug)]
pub struct SquareAvgState<B: Backend> {
    /// Moving average of squared gradients.
    pub square_avg: Moment<B>,
}

/// Variance of [`RmsPropState`].
#[derive(Record, Clone, Debug)]
pub struct CenteredState<B: Backend> {
    /// Moving average of gradients, if centered.
    pub grad_avg: Option<Moment<B>>,
    /// If centered, the variance; else the moving average of squares itself.
    pub avg: Moment<B>,
}

/// Momentum of [`RmsPropState`].
#[derive(Record, Clone, Debug)]
pub struct RmsPropMomentumState<B: Backend> {
    /// The sum that steps go into.
    pub buf: Moment<B>,
}

impl<B: LeanBackend> SimpleOptimizer<B> for RmsProp {
    type State<const D: usize> = RmsPropState<B>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<RmsPropState<B>>,
    ) -> (Tensor<B, D>, Option<RmsPropState<B>>) {
        let settings = &self.settings;
        let decay = self.weight_decay;
        let root = Root::new(lr, self.alpha, self.momentum, self.epsilon, decay);
        let state = state.map(Moments::from);
        let (tensor, moments) = match (self.centered, self.momentum > 0.0) {
            (false, false) => {
                let states = state.map(|moments| [moments.square]);
                let kinds = [Kind::Positive];
                let (tensor, [square]) =
                    settings.step(&Plain(root), kinds, None, tensor, grad, states);
                (tensor, Moments::new(square, None, None))
            }
            (false, true) => {
                let states = state.map(|moments| {
                    let buf = or_zeros::<B, D>(moments.buf, &moments.square);
                    [moments.square, buf]
                });
                let kinds = [Kind::Positive, Kind::Signed];
                let rule = WithMomentum(root);
                let (tensor, [square, buf]) =
                    settings.step(&rule, kinds, None, tensor, grad, states);
                (tensor, Moments::new(square, None, Some(buf)))
            }
            (true, false) => {
                let states = state.map(|moments| {
                    let Moments {
                        square,
                        mean,
                        variance,
                        ..
                    } = moments;
                    let mean = or_zeros::<B, D>(mean, &square);
                    let variance = or_zeros::<B, D>(variance, &square);
                    [square, mean, variance]
                });
                let kinds = [Kind::Positive, Kind::Signed, Kind::Signed];
                let rule = Centered(root);
                let (tensor, states) = settings.step(&rule, kinds, None, tensor, grad, states);
                let [square, mean, variance] = states;
                (tensor, Moments::new(square, Some([mean, variance]), None))
            }
            (true, true) => {
                let states = state.map(|moments| {
                    let Moments {
                        square,
                        mean,
                        variance,
                        buf,
                    } = moments;
                    let mean = or_zeros::<B, D>(mean, &square);
                    let variance = or_zeros::<B, D>(variance, &square);
                    let buf = or_zeros::<B, D>(buf, &square);
                    [square, mean, variance, buf]
                });
                let kinds = [Kind::Positive, Kind::Signed, Kind::Signed, Kind::Signed];
                let rule = CenteredWithMomentum(root);
                let (tensor, states) = settings.step(&rule, kinds, None, tensor, grad, states);
                let [square, mean, variance, buf] = states;
                (
                    tensor,
                    Moments::new(square, Some([mean, variance]), Some(buf)),
                )
            }
        };
        (tensor, Some(moments.into()))
    }

    fn to_device<const D: usize>(state: RmsPropState<B>, device: &B::Device) -> RmsPropState<B> {
        let Moments {
            square,
            mean,
            variance,
            buf,
        } = state.into();
        let move_to = |moment: Moment<B>| moment.on_device(device);
        let moments = Moments {
            square: move_to(square),
            mean: mean.map(move_to),
            variance: variance.map(move_to),
            buf: buf.map(move_to),
        };
        moments.into()
    }
}

/// [`RmsPropState`] without its nesting, and with each state once.
struct Moments<B: Backend> {
    square: Moment<B>,
    mean: Option<Moment<B>>,
    variance: Option<Moment<B>>,
    buf: Option<Moment<B>>,
}

impl<B: Backend> Moments<B> {
    fn new(square: Moment<B>, spread: Option<[Moment<B>; 2]>, buf: Option<Moment<B>>) -> Self {
        let (mean, variance) = spread.map(|[mean, variance]| (mean, variance)).unzip();
        Self {
            square,
            mean,
            variance,
            buf,
        }
    }
}

impl<B: Backend> From<RmsPropState<B>> for Moments<B> {
    fn from(state: RmsPropState<B>) -> Self {
        let CenteredState { grad_avg, avg } = state.centered;
        Self {
            square: state.square_avg.square_avg,
            // Not centered, it is a second handle of the squares, without which they are stepped in
            // place.
            variance: grad_avg.is_some().then_some(avg),
            mean: grad_avg,
            buf: state.momentum.map(|momentum| momentum.buf),
        }
    }
}

impl<B: Backend> From<Moments<B>> for RmsPropState<B> {
    fn from(moments: Moments<B>) -> Self {
        Self {
            centered: CenteredState {
                avg: moments.variance.unwrap_or_else(|| moments.square.clone()),
                grad_avg: moments.mean,
            },
            square_avg: SquareAvgState {
                square_avg: moments.square,
            },
            momentum: moments.buf.map(|buf| RmsPropMomentumState { buf }),
        }
    }
}

/// Zeros for a moment that a record of a run with other settings does not have.
fn or_zeros<B: Backend, const D: usize>(moment: Option<Moment<B>>, like: &Moment<B>) -> Moment<B> {
    moment.unwrap_or_else(|| {
        let zeros = like.to_tensor::<D>().zeros_like();
        Moment::from_tensor(zeros, like.format())
    })
}
