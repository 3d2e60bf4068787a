//! The names of Burn 0.21 for what the tests of both Burns use, on the backend of the module above.

use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::SimpleOptimizer;
use burn::record::{BinBytesRecorder, DoublePrecisionSettings, Record, Recorder};
use burn::tensor::TensorPrimitive;
use burn::tensor::backend::BackendTypes;

use super::Backend;

pub(crate) use burn_gradient_release_optim::{
    AccumulateInMoments, AdaLomoConfig, AdamW, Bf16Weights, CameConfig, CannotAccumulate,
    EightBitMoments, Format, InOnePass, Kind, Lean, Lion, LionConfig, MasterWeights, MomentDecay,
    RAdamConfig, Rounding, Sgd, StableAdamW, StableAdamWConfig, Stochastic,
};

pub(crate) type Tensor<const D: usize> = burn::tensor::Tensor<Backend, D>;
pub(crate) type Device = <Backend as BackendTypes>::Device;
// The states of Burn 0.22 know the number of dimensions.
pub(crate) type Moment<const D: usize> = burn_gradient_release_optim::Moment<Backend>;
pub(crate) type AdamWState<const D: usize> = burn_gradient_release_optim::AdamWState<Backend>;
pub(crate) type AdaptiveMomentumState<const D: usize> =
    burn_gradient_release_optim::AdaptiveMomentumState<Backend>;
pub(crate) type BurnsAdamWState<const D: usize> =
    <burn::optim::AdamW as SimpleOptimizer<Backend>>::State<D>;

pub(crate) trait Optimizer: SimpleOptimizer<Backend> + 'static {}

impl<O: SimpleOptimizer<Backend> + 'static> Optimizer for O {}

/// A state as it would be saved, with floats in 64 bits: Burn's full precision has 32.
#[derive(Debug, PartialEq)]
pub(crate) struct Saved(pub(crate) Vec<u8>);

impl Saved {
    pub(crate) fn of(state: &(impl Record<Backend> + Clone)) -> Self {
        let recorder = BinBytesRecorder::<DoublePrecisionSettings>::default();
        Self(Recorder::<Backend>::record(&recorder, state.clone(), ()).unwrap())
    }

    pub(crate) fn load<S: Record<Backend>>(&self, device: &Device) -> Option<S> {
        let recorder = BinBytesRecorder::<DoublePrecisionSettings>::default();
        Recorder::<Backend>::load(&recorder, self.0.clone(), device).ok()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// Burn has none.
pub(crate) const LION_IS_BURNS: bool = false;

pub(crate) fn device() -> Device {
    Device::default()
}

/// The devices of the backend.
pub(crate) fn places() -> Vec<Device> {
    vec![device()]
}

pub(crate) fn places_with_bf16() -> Vec<Device> {
    places()
}

pub(crate) fn lion(config: &LionConfig) -> Lion {
    config.build()
}

pub(crate) fn model_without_embeddings() -> Linear<Backend> {
    LinearConfig::new(2, 2).init(&device())
}

/// The embedding's weight is `[100, 50]`, and that of the other layer `[50, 100]`.
pub(crate) fn model_with_embedding() -> (Embedding<Backend>, Linear<Backend>) {
    (
        EmbeddingConfig::new(100, 50).init(&device()),
        LinearConfig::new(50, 100).init(&device()),
    )
}

/// Checks those optimizers of [`InOnePass`] that Burn 0.22 does not have.
macro_rules! optimizers_of_this_burn {
    ($check:ident) => {{
        use burn::optim::{AdaGradConfig, AdanConfig, RmsPropConfig};
        let decay = || Some(WeightDecayConfig::new(0.01));
        let rmsprop = RmsPropConfig::new;
        let centered = || rmsprop().with_centered(true);
        let adan = || AdanConfig::new().with_weight_decay(0.02);
        let adagrad = AdaGradConfig::new().with_lr_decay(0.1);
        $check!("adagrad", adagrad.with_weight_decay(decay()));
        $check!("rmsprop", rmsprop().with_weight_decay(decay()));
        $check!("rmsprop, no momentum", rmsprop().with_momentum(0.0));
        $check!("rmsprop, centered", centered());
        $check!(
            "rmsprop, centered, no momentum",
            centered().with_momentum(0.0)
        );
        $check!("adan", adan());
        $check!("adan, no prox", adan().with_no_prox(true));
    }};
}
pub(crate) use optimizers_of_this_burn;

/// Checks optimizers that burn-lean for Burn 0.22 does not have, as the tests of types do.
#[allow(unused_macros, reason = "those tests are for Flex alone")]
macro_rules! each_of_this_burn {
    ($check:ident) => {{
        use burn::optim::{AdaGradConfig, AdanConfig, RmsPropConfig};
        let adafactor = burn_gradient_release_optim::AdafactorConfig::new().with_beta_1(Some(0.9));
        let rmsprop = || RmsPropConfig::new().in_one_pass();
        let adan = || AdanConfig::new().in_one_pass();
        $check("Adafactor", adafactor.build(), false);
        $check(
            "RMSProp, moments in bf16",
            rmsprop().with_bf16_moments(),
            false,
        );
        $check("Adan, moments in bf16", adan().with_bf16_moments(), false);
        $check("RMSProp", rmsprop(), true);
        $check("Adan", adan(), true);
        $check("AdaGrad", AdaGradConfig::new().in_one_pass(), true);
    }};
}
#[allow(unused_imports, reason = "as above")]
pub(crate) use each_of_this_burn;

/// Where the elements of a tensor begin.
pub(crate) fn address(tensor: &Tensor<2>) -> usize {
    let TensorPrimitive::Float(tensor) = tensor.clone().into_primitive() else {
        unreachable!("it is of floats")
    };
    tensor.bytes().as_ptr() as usize
}

/// Where the buffers of a moment begin.
pub(crate) fn addresses(moment: &Moment<2>) -> Vec<usize> {
    let buffers = match moment {
        burn_gradient_release_optim::Moment::Float(floats) => vec![floats],
        burn_gradient_release_optim::Moment::EightBit(blocks) => vec![&blocks.words],
    };
    let buffers = buffers.into_iter();
    buffers
        .map(|buffer| buffer.bytes().as_ptr() as usize)
        .collect()
}
