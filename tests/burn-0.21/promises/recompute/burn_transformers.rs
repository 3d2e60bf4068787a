//! Burn's own transformers, whose layers no scope can be put around.

use burn::nn::transformer::{
    TransformerDecoder, TransformerDecoderConfig, TransformerDecoderInput, TransformerEncoder,
    TransformerEncoderConfig, TransformerEncoderInput,
};

use super::{recipe, recomputing};
use crate::harness::prelude::*;

#[derive(Module, Debug)]
struct Both<B: Backend> {
    encoder: TransformerEncoder<B>,
    decoder: TransformerDecoder<B>,
}

struct Transformers;

impl Scenario for Transformers {
    type Model<B: AutodiffBackend> = Both<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> Both<B> {
        Both {
            encoder: TransformerEncoderConfig::new(8, 32, 2, 4)
                .with_dropout(0.0)
                .init(device),
            decoder: TransformerDecoderConfig::new(8, 32, 2, 4)
                .with_dropout(0.0)
                .init(device),
        }
    }

    fn loss<B: AutodiffBackend>(model: &Both<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let device = Default::default();
        let source = noise::<B, 3>(step, [2, 24, 8], &device);
        let target = noise::<B, 3>(step + 100, [2, 24, 8], &device);
        let memory = model.encoder.forward(TransformerEncoderInput::new(source));
        let decoded = TransformerDecoderInput::new(target, memory);
        model.decoder.forward(decoded).square().mean()
    }
}

#[test]
fn encoder_and_decoder_are_recomputed_as_they_are() {
    const STEPS: u64 = 5;

    let start = Start::new::<Transformers>(Size::Small);
    let expected = run::plain::<Transformers, _, P>(&start, &recipe(), STEPS);
    for recompute in [Recompute::Automatic, Recompute::Budget(1 << 17)] {
        let model = start.model::<Transformers, R>();
        let parameters = trainable::<R, _>(&model);
        let (given, reports) =
            run::armed(model, &mut recomputing(recompute), STEPS, &|model, step| {
                Transformers::loss(model, Size::Small, step)
            });
        assert_same_steps(&given.steps, &expected.steps, format!("{recompute:?}"));
        assert_run_released(&reports, parameters);
        let mut recomputed = reports.iter().map(|report| report.recomputed());
        assert!(recomputed.all(|step| step.segments > 1), "{recompute:?}");
    }
}
