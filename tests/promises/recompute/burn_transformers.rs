//! Burn's own transformers, whose layers no scope can be put around.

use burn::module::{AutodiffModule, Module};
use burn::nn::transformer::{
    TransformerDecoder, TransformerDecoderConfig, TransformerDecoderInput, TransformerEncoder,
    TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{Recompute, WithGradientRelease};

use crate::harness::run::{RATE, assert_all_released, ordinary_step, trainable};
use crate::harness::weights::{load, save};
use crate::harness::{Plain, Release, Weights, noise};

type P = Plain;
type R = Release;

#[derive(Module, Debug)]
struct Model<B: Backend> {
    encoder: TransformerEncoder<B>,
    decoder: TransformerDecoder<B>,
}

impl<B: AutodiffBackend> Model<B> {
    fn new() -> Self {
        let device = Default::default();
        Self {
            encoder: TransformerEncoderConfig::new(8, 32, 2, 4)
                .with_dropout(0.0)
                .init(&device),
            decoder: TransformerDecoderConfig::new(8, 32, 2, 4)
                .with_dropout(0.0)
                .init(&device),
        }
    }

    fn loss(&self, step: u64) -> Tensor<B, 1> {
        let device = Default::default();
        let source = noise::<B, 3>(step, [2, 24, 8], &device);
        let target = noise::<B, 3>(step + 100, [2, 24, 8], &device);
        let memory = self.encoder.forward(TransformerEncoderInput::new(source));
        let decoded = self
            .decoder
            .forward(TransformerDecoderInput::new(target, memory));
        decoded.square().mean()
    }
}

fn step<B: AutodiffBackend, M: AutodiffModule<B>>(
    model: M,
    optim: &mut impl Optimizer<M, B>,
    loss: Tensor<B, 1>,
) -> M {
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    optim.step(RATE, model, grads)
}

#[test]
fn encoder_and_decoder_are_recomputed_as_they_are() {
    let device = Default::default();
    let bytes = save::<P, _>(Model::<P>::new());
    for recompute in [Recompute::Automatic, Recompute::Budget(1 << 17)] {
        let mut plain = load::<P, _>(Model::new(), &bytes, &device);
        let mut plain_optim = AdamConfig::new().init();
        let mut model = load::<R, _>(Model::<R>::new(), &bytes, &device);
        let optim = AdamConfig::new()
            .init::<R, Model<R>>()
            .with_gradient_release();
        let mut optim = optim.with_recompute(recompute);
        let parameters = trainable::<R, _>(&model);
        for number in 0..20 {
            let loss = plain.loss(number);
            plain = ordinary_step(RATE, plain, &mut plain_optim, loss);
            model = optim.arm(RATE, model);
            let loss = model.loss(number);
            model = step(model, &mut optim, loss);
            let context = format!("{recompute:?}, step {number}");
            Weights::of::<R, _>(&model).assert_same(&Weights::of::<P, _>(&plain), &context);
            let report = optim.last_step().unwrap();
            assert_all_released(&report, parameters);
            assert!(report.recomputed().segments > 1, "{context}");
        }
    }
}
