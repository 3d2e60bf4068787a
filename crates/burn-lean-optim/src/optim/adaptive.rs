//! First and second moments, as Adam, AdamW, RAdam and others have them.

use burn::{
    record::Record,
    tensor::{Tensor, TensorPrimitive, backend::Backend},
};

use crate::{
    LeanBackend, Number, Rule,
    moment::Moment,
    pass::{Kind, Part, Settings},
};

/// Moments of an optimizer, saved as Burn saves them.
#[derive(Record, Clone, Debug)]
pub struct AdaptiveMomentumState<B: Backend> {
    /// How many steps there were.
    pub time: usize,
    /// Moving average of gradients.
    pub moment_1: Moment<B>,
    /// Moving average of squared gradients.
    pub moment_2: Moment<B>,
    /// Largest second moment so far, with AMSGrad.
    pub max_moment_2: Option<Moment<B>>,
}

impl<B: Backend> AdaptiveMomentumState<B> {
    pub(super) fn on_device(self, device: &B::Device) -> Self {
        Self {
            time: self.time,
            moment_1: self.moment_1.on_device(device),
            moment_2: self.moment_2.on_device(device),
            max_moment_2: self.max_moment_2.map(|moment| moment.on_device(device)),
        }
    }
}

/// What an optimizer does with its moments.
pub(super) trait Update: Copy + Send + Sync + 'static {
    /// The gradient that goes into the moments.
    #[inline(always)]
    fn gradient<T: Number>(&self, weight: &T, grad: T) -> T {
        let _ = weight;
        grad
    }

    /// The new weight.
    fn weight<T: Number>(&self, weight: T, moment_1: T, moment_2: T) -> T;
}

/// The moving averages of one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Averages {
    /// The number of this step, from one on.
    pub(super) time: usize,
    pub(super) factors: Factors,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Factors {
    pub(super) beta_1: f64,
    pub(super) rest_1: f64,
    pub(super) beta_2: f64,
    pub(super) rest_2: f64,
}

impl Factors {
    pub(super) fn new(beta_1: f64, beta_2: f64) -> Self {
        Self {
            beta_1,
            rest_1: 1.0 - beta_1,
            beta_2,
            rest_2: 1.0 - beta_2,
        }
    }

    #[inline(always)]
    pub(super) fn first<T: Number>(&self, grad: T) -> [T; 2] {
        [
            grad.clone().mul_scalar(self.rest_1),
            grad.square().mul_scalar(self.rest_2),
        ]
    }

    #[inline(always)]
    pub(super) fn next<T: Number>(&self, grad: T, moment_1: T, moment_2: T) -> [T; 2] {
        [
            moment_1.mul_scalar(self.beta_1) + grad.clone().mul_scalar(self.rest_1),
            moment_2.mul_scalar(self.beta_2) + grad.square().mul_scalar(self.rest_2),
        ]
    }
}

impl Averages {
    /// Those of Burn's optimizers, and what they divide by for the bias: betas have 32 bits, and what is computed of
    /// them is rounded to as many.
    pub(super) fn as_burn<B: Backend>(
        beta_1: f32,
        beta_2: f32,
        part: Part,
        state: Option<&AdaptiveMomentumState<B>>,
    ) -> (Self, [f32; 2]) {
        let time = part.time(state.map_or(0, |state| state.time));
        let factors = Factors {
            beta_1: part.kept(beta_1).into(),
            rest_1: (1.0 - beta_1).into(),
            beta_2: part.kept(beta_2).into(),
            rest_2: (1.0 - beta_2).into(),
        };
        let corrections = [beta_1, beta_2].map(|beta| 1.0 - beta.powi(time as i32));
        (Self { time, factors }, corrections)
    }

    pub(super) fn step<B: LeanBackend, U: Update, const D: usize>(
        self,
        settings: &Settings,
        update: U,
        amsgrad: bool,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<AdaptiveMomentumState<B>>,
    ) -> (Tensor<B, D>, AdaptiveMomentumState<B>) {
        let Self { time, factors } = self;
        let rule = WithMoments { factors, update };
        let kinds = [Kind::Signed, Kind::Positive];
        if amsgrad {
            let states = state.map(|state| {
                let most = state.max_moment_2.unwrap_or_else(|| least(&state.moment_2));
                [state.moment_1, state.moment_2, most]
            });
            let kinds = [Kind::Signed, Kind::Positive, Kind::Positive];
            let (tensor, states) = settings.step(&AmsGrad(rule), kinds, tensor, grad, states);
            let [moment_1, moment_2, most] = states;
            let max_moment_2 = Some(most);
            (
                tensor,
                AdaptiveMomentumState {
                    time,
                    moment_1,
                    moment_2,
                    max_moment_2,
                },
            )
        } else {
            // A record of a run with AMSGrad keeps what it has, as in Burn.
            let (states, max_moment_2) = state
                .map(|state| ([state.moment_1, state.moment_2], state.max_moment_2))
                .unzip();
            let (tensor, [moment_1, moment_2]) = settings.step(&rule, kinds, tensor, grad, states);
            let max_moment_2 = max_moment_2.flatten();
            (
                tensor,
                AdaptiveMomentumState {
                    time,
                    moment_1,
                    moment_2,
                    max_moment_2,
                },
            )
        }
    }
}

/// A largest moment that any other replaces, for a record of a run without AMSGrad.
fn least<B: Backend>(moment: &Moment<B>) -> Moment<B> {
    let shape = moment.shape();
    let flat = Tensor::<B, 1>::full([shape.num_elements()], f32::NEG_INFINITY, &moment.device());
    let TensorPrimitive::Float(flat) = flat.into_primitive() else {
        unreachable!("it was made of floats");
    };
    Moment::Float(B::float_reshape(flat, shape))
}

#[derive(Clone, Copy)]
pub(super) struct WithMoments<U> {
    pub(super) factors: Factors,
    pub(super) update: U,
}

impl<U: Update> Rule<2> for WithMoments<U> {
    #[inline(always)]
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; 2]) {
        let grad = self.update.gradient(&weight, grad);
        let [moment_1, moment_2] = self.factors.first(grad);
        let weight = self
            .update
            .weight(weight, moment_1.clone(), moment_2.clone());
        (weight, [moment_1, moment_2])
    }

    #[inline(always)]
    fn next<T: Number>(&self, weight: T, grad: T, [moment_1, moment_2]: [T; 2]) -> (T, [T; 2]) {
        let grad = self.update.gradient(&weight, grad);
        let [moment_1, moment_2] = self.factors.next(grad, moment_1, moment_2);
        let weight = self
            .update
            .weight(weight, moment_1.clone(), moment_2.clone());
        (weight, [moment_1, moment_2])
    }
}

/// AMSGrad: the largest second moment so far in the place of the second moment.
#[derive(Clone, Copy)]
struct AmsGrad<U>(WithMoments<U>);

impl<U: Update> Rule<3> for AmsGrad<U> {
    #[inline(always)]
    fn first<T: Number>(&self, weight: T, grad: T) -> (T, [T; 3]) {
        let (weight, [moment_1, moment_2]) = self.0.first(weight, grad);
        (weight, [moment_1, moment_2.clone(), moment_2])
    }

    #[inline(always)]
    fn next<T: Number>(&self, weight: T, grad: T, state: [T; 3]) -> (T, [T; 3]) {
        let Self(WithMoments { factors, update }) = self;
        let [moment_1, moment_2, most] = state;
        let grad = update.gradient(&weight, grad);
        let [moment_1, moment_2] = factors.next(grad, moment_1, moment_2);
        let most = most.max_pair(moment_2.clone());
        let weight = update.weight(weight, moment_1.clone(), most.clone());
        (weight, [moment_1, moment_2, most])
    }
}
