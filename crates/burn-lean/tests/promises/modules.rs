//! Every module of burn-nn that has parameters: the bits of plain Burn, every weight in place.

use burn::module::ModuleDisplay;
use burn::nn::activation::Activation;
use burn::nn::attention::{
    CrossAttentionConfig, MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::nn::conv::{
    Conv1dConfig, Conv2dConfig, Conv3dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig,
    ConvTranspose3dConfig, DeformConv2dConfig,
};
use burn::nn::norm::{Normalization, NormalizationConfig};
use burn::nn::transformer::{
    PositionWiseFeedForwardConfig, TransformerDecoderConfig, TransformerDecoderInput,
};
use burn::nn::{
    BiGruConfig, BiLstmConfig, BiRnnConfig, GroupNormConfig, GruConfig, InstanceNormConfig,
    LinearLayout, LstmConfig, PReluConfig, PaddingConfig2d, PositionalEncodingConfig, RnnConfig,
    RotaryEncoding, RotaryEncodingConfig, SwiGluConfig,
};

use crate::harness::prelude::*;

const STEPS: usize = 5;

/// A module on an activation: its weights meet a tape that began before them.
#[derive(Module, Debug)]
struct Scaled<M: Module> {
    scale: Param<Tensor<1>>,
    module: M,
}

fn check<M: Module + ModuleDisplay, const I: usize, const O: usize>(
    shape: [usize; I],
    make: impl Fn(&Device) -> M,
    forward: impl Fn(&M, Tensor<I>) -> Tensor<O>,
) {
    let device = flex();
    let make = || {
        seeded(&device, |device| Scaled {
            scale: Param::from_tensor(Tensor::ones([1], device)),
            module: make(device),
        })
    };
    let loss = |model: &Scaled<M>, step| {
        let input = numbers(shape, step, &device) * model.scale.val().reshape([1; I]);
        let output = forward(&model.module, input);
        let target = numbers(output.dims(), step + 1, &device);
        (output - target).square().mean()
    };
    for reports in both_ways(BOTH, STEPS, make, loss) {
        for report in reports {
            assert_eq!(
                report.in_place(),
                report.count(Outcome::Released),
                "{report:?}"
            );
        }
    }
}

/// A test for each line: the shape of the input, what makes the module, and its forward pass.
macro_rules! modules {
    ($($name:ident: $shape:expr, $make:expr, $forward:expr;)+) => {
        $(
            #[test]
            fn $name() {
                check($shape, $make, $forward);
            }
        )+
    };
}

modules! {
    linear: [4, 6], |d| LinearConfig::new(6, 3).init(d), |m, x: Tensor<2>| m.forward(x);
    linear_without_bias: [4, 6], |d| LinearConfig::new(6, 3).with_bias(false).init(d),
        |m, x: Tensor<2>| m.forward(x);
    linear_in_columns: [4, 6],
        |d| LinearConfig::new(6, 3).with_layout(LinearLayout::Col).init(d),
        |m, x: Tensor<2>| m.forward(x);
    linear_on_four_dimensions: [2, 2, 3, 6], |d| LinearConfig::new(6, 3).init(d),
        |m, x: Tensor<4>| m.forward(x);
    linear_on_a_vector: [6], |d| LinearConfig::new(6, 3).init(d), |m, x: Tensor<1>| m.forward(x);
    embedding: [2, 3, 4], |d| EmbeddingConfig::new(10, 4).init(d),
        |m, x| m.forward(ids([2, 3], 1, 10, &x.device())) * x;

    conv1d: [2, 4, 8], |d| Conv1dConfig::new(4, 6, 3).init(d), |m, x| m.forward(x);
    conv1d_grouped: [2, 4, 9],
        |d| Conv1dConfig::new(4, 6, 3).with_groups(2).with_stride(2).with_dilation(2).init(d),
        |m, x| m.forward(x);
    conv2d: [2, 3, 6, 6], |d| Conv2dConfig::new([3, 4], [3, 3]).init(d), |m, x| m.forward(x);
    conv2d_grouped: [2, 4, 7, 7],
        |d| Conv2dConfig::new([4, 6], [3, 3]).with_groups(2).with_stride([2, 2]).init(d),
        |m, x| m.forward(x);
    conv2d_without_bias: [2, 3, 6, 6],
        |d| {
            let config = Conv2dConfig::new([3, 4], [3, 3]).with_bias(false);
            config.with_padding(PaddingConfig2d::Same).init(d)
        },
        |m, x| m.forward(x);
    conv3d: [1, 2, 4, 4, 4], |d| Conv3dConfig::new([2, 3], [2, 2, 2]).init(d), |m, x| m.forward(x);
    conv_transpose1d: [2, 4, 5], |d| ConvTranspose1dConfig::new([4, 3], 3).init(d),
        |m, x| m.forward(x);
    conv_transpose2d: [2, 3, 4, 4],
        |d| ConvTranspose2dConfig::new([3, 4], [3, 3]).with_stride([2, 2]).init(d),
        |m, x| m.forward(x);
    conv_transpose3d: [1, 2, 3, 3, 3],
        |d| ConvTranspose3dConfig::new([2, 3], [2, 2, 2]).init(d), |m, x| m.forward(x);
    deform_conv2d: [2, 3, 5, 5], |d| DeformConv2dConfig::new([3, 4], [3, 3]).init(d), |m, x| {
        let offset = numbers([2, 18, 3, 3], 3, &x.device());
        let mask = numbers([2, 9, 3, 3], 4, &x.device());
        m.forward(x, offset, Some(mask))
    };
    deform_conv2d_with_offsets_from_its_input: [1, 18, 4, 4],
        |d| DeformConv2dConfig::new([18, 4], [3, 3]).init(d), |m, x: Tensor<4>| {
            let offset = x.clone().slice([0..1, 0..18, 0..2, 0..2]);
            m.forward(x, offset, None)
        };

    batch_norm: [4, 3, 5], |d| BatchNormConfig::new(3).init(d), |m, x: Tensor<3>| m.forward(x);
    layer_norm: [4, 6], |d| LayerNormConfig::new(6).init(d), |m, x: Tensor<2>| m.forward(x);
    layer_norm_without_bias: [4, 6], |d| LayerNormConfig::new(6).with_bias(false).init(d),
        |m, x: Tensor<2>| m.forward(x);
    group_norm: [2, 4, 5], |d| GroupNormConfig::new(2, 4).init(d), |m, x: Tensor<3>| m.forward(x);
    instance_norm: [2, 4, 5], |d| InstanceNormConfig::new(4).init(d),
        |m, x: Tensor<3>| m.forward(x);
    rms_norm: [2, 3, 6], |d| RmsNormConfig::new(6).init(d), |m, x: Tensor<3>| m.forward(x);
    any_norm: [4, 6],
        |d| -> Normalization { NormalizationConfig::from(RmsNormConfig::new(6)).init(d) },
        |m, x: Tensor<2>| m.forward(x);

    prelu: [4, 6], |d| PReluConfig::new().init(d), |m, x: Tensor<2>| m.forward(x);
    prelu_by_channel: [4, 6], |d| PReluConfig::new().with_num_parameters(6).init(d),
        |m, x: Tensor<2>| m.forward(x);
    swiglu: [4, 6], |d| SwiGluConfig::new(6, 5).init(d), |m, x: Tensor<2>| m.forward(x);
    swiglu_with_bias: [4, 6], |d| SwiGluConfig::new(6, 5).with_bias(true).init(d),
        |m, x: Tensor<2>| m.forward(x);
    any_activation: [4, 6],
        |d| -> Activation { ActivationConfig::PRelu(PReluConfig::new()).init(d) },
        |m, x: Tensor<2>| m.forward(x);

    rnn: [2, 5, 4], |d| RnnConfig::new(4, 3, true).init(d), |m, x| m.forward(x, None).0;
    rnn_state: [2, 5, 4], |d| RnnConfig::new(4, 3, true).init(d),
        |m, x| m.forward(x, None).1.hidden;
    bi_rnn: [2, 5, 4], |d| BiRnnConfig::new(4, 3, true).init(d),
        |m, x| m.forward(x, None).0;
    gru: [2, 5, 4], |d| GruConfig::new(4, 3, true).init(d), |m, x| m.forward(x, None);
    gru_with_early_reset: [2, 5, 4],
        |d| GruConfig::new(4, 3, true).with_reset_after(false).init(d),
        |m, x| m.forward(x, None);
    bi_gru: [2, 5, 4], |d| BiGruConfig::new(4, 3, true).init(d), |m, x| m.forward(x, None).0;
    lstm: [2, 5, 4], |d| LstmConfig::new(4, 3, true).init(d), |m, x| m.forward(x, None).0;
    lstm_state: [2, 5, 4], |d| LstmConfig::new(4, 3, true).init(d),
        |m, x| {
            let state = m.forward(x, None).1;
            state.cell + state.hidden
        };
    lstm_without_forget_gate: [2, 5, 4],
        |d| LstmConfig::new(4, 3, false).with_input_forget(true).init(d),
        |m, x| m.forward(x, None).0;
    lstm_in_reverse: [5, 2, 4],
        |d| LstmConfig::new(4, 3, true).with_reverse(true).with_batch_first(false).init(d),
        |m, x| m.forward(x, None).0;
    bi_lstm: [2, 5, 4], |d| BiLstmConfig::new(4, 3, true).init(d), |m, x| m.forward(x, None).0;

    self_attention: [2, 4, 8],
        |d| MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0).init(d),
        |m, x| m.forward(MhaInput::self_attn(x)).context;
    masked_attention: [2, 4, 8],
        |d| MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0).init(d),
        |m, x| {
            let mask = generate_autoregressive_mask(2, 4, &x.device());
            m.forward(MhaInput::self_attn(x).mask_attn(mask)).context
        };
    quiet_attention: [2, 4, 8],
        |d| {
            let config = MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0);
            config.with_quiet_softmax(true).init(d)
        },
        |m, x| m.forward(MhaInput::self_attn(x)).context;
    cross_attention: [2, 4, 8],
        |d| CrossAttentionConfig::new(8, 8, 4, 2, 3).with_dropout(0.0).init(d),
        |m, x| {
            let context = x.clone().tanh();
            m.forward(x, context, None)
        };
    feed_forward: [2, 3, 6],
        |d| PositionWiseFeedForwardConfig::new(6, 9).with_dropout(0.0).init(d),
        |m, x: Tensor<3>| m.forward(x);
    transformer_encoder: [2, 4, 8],
        |d| TransformerEncoderConfig::new(8, 12, 2, 2).with_dropout(0.0).init(d),
        |m, x| m.forward(TransformerEncoderInput::new(x));
    transformer_encoder_norm_first: [2, 4, 8],
        |d| {
            let config = TransformerEncoderConfig::new(8, 12, 2, 2).with_dropout(0.0);
            config.with_norm_first(true).init(d)
        },
        |m, x| m.forward(TransformerEncoderInput::new(x));
    transformer_decoder: [2, 4, 8],
        |d| TransformerDecoderConfig::new(8, 12, 2, 2).with_dropout(0.0).init(d),
        |m, x| {
            let memory = x.clone().tanh();
            m.forward(TransformerDecoderInput::new(x, memory))
        };
    transformer_decoder_norm_first: [2, 4, 8],
        |d| {
            let config = TransformerDecoderConfig::new(8, 12, 2, 2).with_dropout(0.0);
            config.with_norm_first(true).init(d)
        },
        |m, x| {
            let memory = x.clone().tanh();
            m.forward(TransformerDecoderInput::new(x, memory))
        };

    // Without parameters, but with tensors that are part of the module.
    positional_encoding: [2, 4, 8],
        |d| {
            let encoding = PositionalEncodingConfig::new(8).with_max_sequence_size(10).init(d);
            (encoding, LinearConfig::new(8, 3).init(d))
        },
        |(encoding, linear), x| linear.forward(encoding.forward(x));
    rotary_encoding: [2, 4, 8],
        |d| -> (RotaryEncoding, _) {
            (RotaryEncodingConfig::new(10, 8).init(d), LinearConfig::new(8, 8).init(d))
        },
        |(encoding, linear), x: Tensor<3>| encoding.forward(linear.forward(x));
    lstm_on_lstm: [2, 4, 4],
        |d| [LstmConfig::new(4, 3, true).init(d), LstmConfig::new(3, 5, true).init(d)],
        |[first, second], x| second.forward(first.forward(x, None).0, None).0;
}
