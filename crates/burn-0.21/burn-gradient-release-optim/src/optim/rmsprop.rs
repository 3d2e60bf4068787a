//! RMSProp.

use burn::{
    grad_clipping::GradientClippingConfig,
    optim::{LearningRate, RmsPropConfig, SimpleOptimizer, decay::WeightDecayConfig},
    record::Record,
    tensor::{Tensor, backend::Backend},
};
use lean_arithmetic::optim::{
    Kind, Rule, configuration,
    rules::{Centered, CenteredWithMomentum, CoupledDecay, Plain, Root, WithMomentum},
};
use serde::Deserialize;

use super::{InOnePass, Lean, coupled_decay};
use crate::{
    LeanBackend,
    moment::{Format, Moment},
    settings::Settings,
};

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

/// [`RmsPropState`] without its nesting, and with each state once: the squares, the mean, the
/// variance and the momentum.
type Moments<B> = [Option<Moment<B>>; 4];

const KINDS: [Kind; 4] = [Kind::Positive, Kind::Signed, Kind::Signed, Kind::Signed];

impl<B: Backend> RmsPropState<B> {
    fn into_moments(self) -> Moments<B> {
        let CenteredState { grad_avg, avg } = self.centered;
        // Not centered, it is a second handle of the squares, without which they are stepped in
        // place.
        let variance = grad_avg.is_some().then_some(avg);
        let buf = self.momentum.map(|momentum| momentum.buf);
        [Some(self.square_avg.square_avg), grad_avg, variance, buf]
    }

    fn from_moments([square_avg, grad_avg, variance, buf]: Moments<B>) -> Self {
        let square_avg = square_avg.expect("every rule has it");
        let avg = variance.unwrap_or_else(|| square_avg.clone());
        Self {
            centered: CenteredState { grad_avg, avg },
            square_avg: SquareAvgState { square_avg },
            momentum: buf.map(|buf| RmsPropMomentumState { buf }),
        }
    }
}

impl RmsProp {
    /// Steps by a rule whose states are the moments at `places`.
    fn step_by<B: LeanBackend, R: Rule<N>, const N: usize, const D: usize>(
        &self,
        rule: R,
        places: [usize; N],
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<RmsPropState<B>>,
    ) -> (Tensor<B, D>, Option<RmsPropState<B>>) {
        // A record of a run with other settings does not have all of them.
        let zeros = || Moment::from_tensor(tensor.zeros_like(), Format::Float(tensor.dtype()));
        let states = state.map(|state| {
            let mut moments = state.into_moments();
            places.map(|place| moments[place].take().unwrap_or_else(zeros))
        });
        let kinds = places.map(|place| KINDS[place]);
        let (tensor, states) = self.settings.step(&rule, kinds, None, tensor, grad, states);
        let mut moments = Moments::default();
        for (place, state) in places.into_iter().zip(states) {
            moments[place] = Some(state);
        }
        (tensor, Some(RmsPropState::from_moments(moments)))
    }
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
        let decay = self.weight_decay;
        let root = Root::new(lr, self.alpha, self.momentum, self.epsilon, decay);
        match (self.centered, self.momentum > 0.0) {
            (false, false) => self.step_by(Plain(root), [0], tensor, grad, state),
            (false, true) => self.step_by(WithMomentum(root), [0, 3], tensor, grad, state),
            (true, false) => self.step_by(Centered(root), [0, 1, 2], tensor, grad, state),
            (true, true) => {
                let rule = CenteredWithMomentum(root);
                self.step_by(rule, [0, 1, 2, 3], tensor, grad, state)
            }
        }
    }

    fn to_device<const D: usize>(state: RmsPropState<B>, device: &B::Device) -> RmsPropState<B> {
        let moments = state.into_moments();
        let moved = moments.map(|moment| moment.map(|moment| moment.on_device(device)));
        RmsPropState::from_moments(moved)
    }
}
