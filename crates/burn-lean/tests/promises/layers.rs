//! Ready scopes: layers, Burn's encoder and decoder, a loss over chunks of tokens.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerDecoder, TransformerDecoderConfig, TransformerDecoderInput, TransformerEncoder,
    TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_lean::{
    DecoderMasks, WithGradientRelease, checkpoint_chunks, checkpoint_decoder, checkpoint_each,
    checkpoint_encoder,
};

use crate::harness::{adamw, bits, flex, ids, numbers, plain_step, release_step, seeded};

#[derive(Module, Debug)]
struct Translator {
    encoder: TransformerEncoder,
    decoder: TransformerDecoder,
}

impl Translator {
    fn new(device: &Device) -> Self {
        Self {
            encoder: TransformerEncoderConfig::new(8, 16, 2, 3).with_dropout(0.0).init(device),
            decoder: TransformerDecoderConfig::new(8, 16, 2, 3).with_dropout(0.0).init(device),
        }
    }
}

fn pad(device: &Device) -> Tensor<2, Bool> {
    Tensor::<2, Int>::from_ints([[0, 0, 0, 0], [0, 0, 1, 1]], device).equal_elem(1)
}

fn causal(device: &Device) -> Tensor<3, Bool> {
    burn::nn::attention::generate_autoregressive_mask(2, 4, device)
}

fn kept(model: &Translator, step: usize) -> Tensor<1> {
    let device = flex();
    let input = TransformerEncoderInput::new(numbers([2, 4, 8], step, &device))
        .mask_pad(pad(&device))
        .mask_attn(causal(&device));
    let memory = model.encoder.forward(input);
    let input = TransformerDecoderInput::new(numbers([2, 4, 8], step + 50, &device), memory)
        .target_mask_attn(causal(&device))
        .memory_mask_pad(pad(&device));
    model.decoder.forward(input).square().mean()
}

fn recomputed(model: &Translator, step: usize) -> Tensor<1> {
    let device = flex();
    let x = numbers([2, 4, 8], step, &device);
    let memory =
        checkpoint_encoder(&model.encoder, x, Some(pad(&device)), Some(causal(&device)));
    let masks = DecoderMasks {
        target_attn: Some(causal(&device)),
        memory_pad: Some(pad(&device)),
        ..DecoderMasks::default()
    };
    let target = numbers([2, 4, 8], step + 50, &device);
    checkpoint_decoder(&model.decoder, target, memory, masks).square().mean()
}

#[test]
fn burns_encoder_and_decoder() {
    let device = flex();
    let (mut expected, mut plain) = (seeded(&device, Translator::new), adamw());
    let (mut unarmed, mut optim) = (seeded(&device, Translator::new), adamw());
    let mut armed = seeded(&device, Translator::new);
    let mut release = adamw().with_gradient_release();
    for step in 0..6 {
        expected = plain_step(expected, &mut plain, |model| kept(model, step));
        unarmed = plain_step(unarmed, &mut optim, |model| recomputed(model, step));
        armed = release_step(armed, &mut release, |model| recomputed(model, step));
        assert_eq!(bits(&unarmed), bits(&expected), "unarmed, step {step}");
        assert_eq!(bits(&armed), bits(&expected), "armed, step {step}");
        let params = release.last_step().unwrap().outcomes().count();
        assert_eq!(release.last_step().unwrap().in_place(), params);
    }
}

#[test]
fn layers_one_after_the_other() {
    let device = flex();
    let make = |device: &Device| -> Vec<Linear> {
        (0..4).map(|_| LinearConfig::new(6, 6).init(device)).collect()
    };
    let x = |step| numbers::<2>([3, 6], step, &flex());
    let (mut expected, mut plain) = (seeded(&device, make), adamw());
    let (mut model, mut release) = (seeded(&device, make), adamw().with_gradient_release());
    for step in 0..4 {
        expected = plain_step(expected, &mut plain, |layers| {
            layers.iter().fold(x(step), |x, layer| layer.forward(x).tanh()).square().mean()
        });
        model = release_step(model, &mut release, |layers| {
            let run = |layer: &Linear, x| layer.forward(x).tanh();
            checkpoint_each(layers, x(step), run).square().mean()
        });
        assert_eq!(bits(&model), bits(&expected));
    }
}

/// The same numbers as one chunk after the other in plain Burn; close to the loss over all.
#[test]
fn a_loss_over_chunks_of_tokens() {
    let device = flex();
    let make = |device: &Device| -> Linear { LinearConfig::new(6, 40).init(device) };
    let chunk_loss = |head: &Linear, hidden: Tensor<2>, targets: Tensor<1, Int>| {
        let tokens = targets.dims()[0] as f64;
        let loss = CrossEntropyLossConfig::new().init(&hidden.device());
        loss.forward(head.forward(hidden), targets) * tokens
    };
    let batch = |step| (numbers::<2>([11, 6], step, &flex()), ids([11], step, 40, &flex()));
    let (mut expected, mut plain) = (seeded(&device, make), adamw());
    let (mut model, mut release) = (seeded(&device, make), adamw().with_gradient_release());
    for step in 0..4 {
        expected = plain_step(expected, &mut plain, |head| {
            let (hidden, targets) = batch(step);
            let parts = hidden.split(4, 0).into_iter().zip(targets.split(4, 0));
            let sums = parts.map(|(hidden, targets)| chunk_loss(head, hidden, targets));
            sums.reduce(|sum, chunk| sum + chunk).unwrap() / 11.0
        });
        model = release_step(model, &mut release, |head| {
            let (hidden, targets) = batch(step);
            checkpoint_chunks(head, hidden, targets, 4, chunk_loss) / 11.0
        });
        let (found, expected) = (&model, &expected);
        assert_eq!(found.weight.val().into_data(), expected.weight.val().into_data());
    }

    let grad_of = |loss: Tensor<1>| {
        let grads = GradientsParams::from_grads(loss.backward(), &expected);
        grads.get::<2>(expected.weight.id).unwrap()
    };
    let (hidden, targets) = batch(9);
    let chunks = checkpoint_chunks(&expected, hidden.clone(), targets.clone(), 4, chunk_loss);
    let whole = chunk_loss(&expected, hidden, targets);
    let difference = (grad_of(chunks) - grad_of(whole)).abs().max().into_scalar::<f32>();
    // Sums of 11 numbers of about 1, in two orders.
    assert!(difference < 2e-6, "{difference}");
    
}
