//! Ready scopes: layers, Burn's encoder and decoder, a loss over chunks of tokens.

use burn::nn::activation::Activation;
use burn::nn::transformer::TransformerEncoder;
use burn::nn::{Lstm, LstmConfig, LstmState, PReluConfig};
use burn_lean::{
    DecoderMasks, checkpoint_chunks, checkpoint_decoder, checkpoint_encoder, checkpoint_steps,
};

use crate::harness::prelude::*;
use crate::memory::peak_of;
use crate::scopes::{assert_same_recomputed, forward};

fn pad(device: &Device) -> Tensor<2, Bool> {
    Tensor::<2, Int>::from_ints([[0, 0, 0, 0], [0, 1, 0, 1]], device).equal_elem(1)
}

fn causal(device: &Device) -> Tensor<3, Bool> {
    burn::nn::attention::generate_autoregressive_mask(2, 4, device)
}

/// What released steps with an encoder and a decoder did, of Burn's `nn` or of ours.
macro_rules! translated {
    ($($nn:ident)::+) => {{
        use $($nn)::+::transformer::{
            TransformerDecoderConfig, TransformerDecoderInput, TransformerEncoderConfig,
            TransformerEncoderInput,
        };
        let make = |device: &Device| {
            let encoder = TransformerEncoderConfig::new(8, 16, 2, 3).with_dropout(0.0);
            let decoder = TransformerDecoderConfig::new(8, 16, 2, 3).with_dropout(0.0);
            (encoder.init(device), decoder.init(device))
        };
        assert_same_recomputed(&flex(), make, |(encoder, decoder), step, again| {
            let x = numbers([2, 4, 8], step, &flex());
            let target = numbers([2, 4, 8], step + 50, &flex());
            let (pad, causal) = (pad(&flex()), causal(&flex()));
            let out = match again {
                true => {
                    let masks = (Some(pad.clone()), Some(causal.clone()));
                    let memory = checkpoint_encoder(encoder, x, masks.0, masks.1);
                    let masks = DecoderMasks {
                        target_attn: Some(causal),
                        memory_pad: Some(pad),
                        ..DecoderMasks::default()
                    };
                    checkpoint_decoder(decoder, target, memory, masks)
                }
                false => {
                    let input = TransformerEncoderInput::new(x).mask_pad(pad.clone());
                    let memory = encoder.forward(input.mask_attn(causal.clone()));
                    let input = TransformerDecoderInput::new(target, memory);
                    decoder.forward(input.target_mask_attn(causal).memory_mask_pad(pad))
                }
            };
            out.square().mean()
        })
    }};
}

#[test]
fn burns_encoder_and_decoder() {
    for report in translated!(burn::nn) {
        assert_eq!(report.in_place(), report.outcomes().count());
    }
}

#[cfg(feature = "operations")]
#[test]
fn lean_encoder_and_decoder() {
    translated!(burn_lean::operations::nn);
}

/// Burn 0.22 skips the activation of a feed-forward network: no scope sees its parameters.
#[test]
fn an_activation_with_parameters_is_frozen_first() {
    let config = TransformerEncoderConfig::new(8, 16, 2, 2).with_dropout(0.0);
    let config = config.with_activation(ActivationConfig::PRelu(PReluConfig::new()));
    let mut encoder = seeded(&flex(), |device| config.init(device));
    let network = &encoder.layers[0].pwff;
    let layers = network.linear_inner.num_params() + network.linear_outer.num_params();
    if network.num_params() > layers {
        return; // Burn 0.23
    }
    let x = || numbers([2, 4, 8], 1, &flex());
    let recomputed =
        |encoder: &TransformerEncoder| checkpoint_encoder(encoder, x(), None, None).square().mean();
    assert_panics(|| recomputed(&encoder), "freeze it with `no_grad()`");
    for layer in &mut encoder.layers {
        let Activation::PRelu(activation) = layer.pwff.activation.clone() else {
            unreachable!("it is the one of the configuration");
        };
        layer.pwff.activation = Activation::PRelu(activation.no_grad());
    }
    let plain = encoder.forward(TransformerEncoderInput::new(x()));
    let grads = [recomputed(&encoder), plain.square().mean()].map(|loss| {
        let grads = GradientsParams::from_grads(loss.backward(), &encoder);
        let weight = &encoder.layers[0].pwff.linear_inner.weight;
        grads.get::<2>(weight.id).unwrap().into_data()
    });
    assert_eq!(grads[0], grads[1]);
}

/// The state of an LSTM goes into a scope and comes out of it.
#[test]
fn the_state_of_an_lstm() {
    let make = |device: &Device| -> Lstm { LstmConfig::new(3, 5, true).init(device) };
    assert_same_recomputed(&flex(), make, |lstm, step, again| {
        let start = |seed| numbers::<2>([2, 5], seed, &flex());
        let state = LstmState::new(start(step + 20), start(step + 40));
        let x = numbers::<3>([2, 1, 3], step, &flex());
        let run = |lstm: &Lstm, (x, state)| lstm.forward(x, Some(state));
        let (out, state) = forward(lstm, (x, state), again, run);
        out.square().mean() + (state.cell * state.hidden).mean()
    });
}

/// The same numbers as one chunk after the other in plain Burn. Those of the loss over all are compared
/// in `operations::cross_entropy`.
#[test]
fn a_loss_over_chunks_of_tokens() {
    let make = |device: &Device| -> Linear { LinearConfig::new(6, 40).init(device) };
    let chunk_loss = |head: &Linear, hidden: Tensor<2>, targets: Tensor<1, Int>| {
        let tokens = targets.dims()[0] as f64;
        let loss = CrossEntropyLossConfig::new().init(&hidden.device());
        loss.forward(head.forward(hidden), targets) * tokens
    };
    assert_same_recomputed(&flex(), make, |head, step, again| {
        let hidden = numbers::<2>([11, 6], step, &flex());
        let targets = ids([11], step, 40, &flex());
        let sum = match again {
            true => checkpoint_chunks(head, hidden, targets, 4, chunk_loss),
            false => {
                let parts = hidden.split(4, 0).into_iter().zip(targets.split(4, 0));
                let sums = parts.map(|(hidden, targets)| chunk_loss(head, hidden, targets));
                sums.reduce(Tensor::add).expect("there are three")
            }
        };
        sum / 11.0
    });
}

/// A recurrent model over 100 steps: the gradients of one call, up to the order of sums, and less
/// than two thirds of its bytes.
#[test]
fn scopes_of_steps() {
    alone(|| {
        const BATCH: usize = 64;
        const TIME: usize = 100;
        const WIDTH: usize = 32;
        let make = |device: &Device| -> Lstm { LstmConfig::new(WIDTH, WIDTH, true).init(device) };
        let lstm = seeded(&flex(), make);
        let run = |steps: Option<usize>| {
            let start = || numbers::<2>([BATCH, WIDTH], 3, &flex());
            let state = LstmState::new(start(), start());
            let input = numbers::<3>([BATCH, TIME, WIDTH], 1, &flex());
            let forward =
                |lstm: &Lstm, input, state: LstmState<2>| lstm.forward(input, Some(state));
            let (out, state) = match steps {
                Some(steps) => checkpoint_steps(&lstm, input, state, steps, forward),
                None => forward(&lstm, input, state),
            };
            let loss = out.square().mean() + (state.cell * state.hidden).mean();
            GradientsParams::from_grads(loss.backward(), &lstm)
        };
        let (expected, of_one_call) = peak_of(|| run(None));
        for steps in [5, 10, TIME] {
            let (found, of_scopes) = peak_of(|| run(Some(steps)));
            println!("{steps} steps: {of_scopes} bytes of {of_one_call}");
            for param in [
                &lstm.input_gate.input_transform.weight,
                &lstm.cell_gate.hidden_transform.weight,
            ] {
                let [expected, found] =
                    [&expected, &found].map(|grads| grads.get::<2>(param.id).unwrap());
                let largest = expected.clone().abs().max().into_scalar::<f32>();
                let difference = (expected - found).abs().max().into_scalar::<f32>();
                // Sums of 6,400 products, in two orders.
                assert!(
                    difference <= 2e-6 * largest,
                    "{difference:e} of {largest:e}"
                );
            }
            // Burn keeps about a kB for each operation of a scope until backward, which no scope saves.
            if steps < TIME {
                assert!(
                    3 * of_scopes < 2 * of_one_call,
                    "{steps}: {of_scopes} of {of_one_call}"
                );
            }
        }
    });
}

#[test]
fn a_target_for_each_token() {
    let head: Linear = LinearConfig::new(6, 40).init(&flex());
    for targets in [6, 12] {
        let (hidden, targets) = (
            numbers::<2>([9, 6], 1, &flex()),
            ids([targets], 2, 40, &flex()),
        );
        let loss = |head: &Linear, hidden, _| head.forward(hidden).sum();
        let run = || checkpoint_chunks(&head, hidden, targets, 3, loss);
        assert_panics(run, "a target for each token");
    }
}
