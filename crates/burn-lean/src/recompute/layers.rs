//! Scopes around parts of a model: layers, Burn's transformers, a loss over chunks of tokens.

use burn::module::Module;
use burn::nn::transformer::{
    TransformerDecoder, TransformerDecoderInput, TransformerEncoder, TransformerEncoderLayer,
};
use burn::tensor::{Bool, Int, Tensor};

use super::checkpoint;
use crate::tensors::Tensors;

/// Runs layers one after the other, each in a scope of [`checkpoint`].
///
/// ```
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor, activation};
/// # use burn_lean::checkpoint_each;
/// let device = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..4).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// let hidden = Tensor::<2>::ones([2, 8], &device);
/// let hidden = checkpoint_each(&layers, hidden, |layer, x| activation::gelu(layer.forward(x)));
/// assert_eq!(hidden.dims(), [2, 8]);
/// ```
///
/// # Panics
///
/// The panics of [`checkpoint`].
pub fn checkpoint_each<M, T, F>(layers: &[M], input: T, forward: F) -> T
where
    M: Module + Sync + 'static,
    T: Tensors,
    F: Fn(&M, T) -> T + Clone + Send + Sync + 'static,
{
    layers.iter().fold(input, |input, layer| {
        checkpoint(layer, input, forward.clone())
    })
}

/// An encoder whose layers run one after the other: Burn's, or that of `operations::nn`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an encoder whose layers `checkpoint_encoder` knows",
    note = "`checkpoint_each(&layers, hidden, |layer, x| ..)` takes layers of any type"
)]
pub trait EncoderLayers {
    /// A layer.
    type Layer: Module + Sync + 'static;

    /// The layers.
    fn layers(&self) -> &[Self::Layer];

    /// Runs a layer.
    fn forward_layer(
        layer: &Self::Layer,
        hidden: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
    ) -> Tensor<3>;
}

/// Implements [`EncoderLayers`] for an encoder with the fields of Burn's.
macro_rules! encoder_layers {
    ($encoder:ty, $layer:ty) => {
        impl $crate::recompute::EncoderLayers for $encoder {
            type Layer = $layer;

            fn layers(&self) -> &[$layer] {
                &self.layers
            }

            fn forward_layer(
                layer: &$layer,
                hidden: Tensor<3>,
                mask_pad: Option<Tensor<2, Bool>>,
                mask_attn: Option<Tensor<3, Bool>>,
            ) -> Tensor<3> {
                layer.forward(hidden, mask_pad, mask_attn)
            }
        }
    };
}

#[cfg(feature = "operations")]
pub(crate) use encoder_layers;

encoder_layers!(TransformerEncoder, TransformerEncoderLayer);

/// `encoder.forward`, each layer in a scope of [`checkpoint`].
///
/// # Shapes
///
/// - hidden: `[batch, time, d_model]`
/// - mask_pad: `[batch, time]`
/// - mask_attn: `[batch, time, time]`
/// - output: `[batch, time, d_model]`
///
/// # Panics
///
/// As [`checkpoint`], and if an activation has parameters: Burn skips the field `pwff.activation`
/// of a layer, so a scope does not know the parameters of a `PRelu` or a `SwiGlu`. Freeze them:
/// `layer.pwff.activation = Activation::PRelu(prelu.no_grad())`.
pub fn checkpoint_encoder<E: EncoderLayers>(
    encoder: &E,
    hidden: Tensor<3>,
    mask_pad: Option<Tensor<2, Bool>>,
    mask_attn: Option<Tensor<3, Bool>>,
) -> Tensor<3> {
    checkpoint_each(encoder.layers(), hidden, move |layer, hidden| {
        E::forward_layer(layer, hidden, mask_pad.clone(), mask_attn.clone())
    })
}

/// The masks of a decoder.
#[derive(Clone, Debug, Default)]
pub struct DecoderMasks {
    /// Padding mask of the target: `[batch, time]`.
    pub target_pad: Option<Tensor<2, Bool>>,
    /// Attention mask of the target: `[batch, time, time]`.
    pub target_attn: Option<Tensor<3, Bool>>,
    /// Padding mask of the memory: `[batch, memory_time]`.
    pub memory_pad: Option<Tensor<2, Bool>>,
    /// Attention mask of the memory: `[batch, time, memory_time]`.
    pub memory_attn: Option<Tensor<3, Bool>>,
}

impl DecoderMasks {
    /// Gives them to an input of Burn's.
    pub(crate) fn mask(self, mut input: TransformerDecoderInput) -> TransformerDecoderInput {
        if let Some(mask) = self.target_pad {
            input = input.target_mask_pad(mask);
        }
        if let Some(mask) = self.target_attn {
            input = input.target_mask_attn(mask);
        }
        if let Some(mask) = self.memory_pad {
            input = input.memory_mask_pad(mask);
        }
        if let Some(mask) = self.memory_attn {
            input = input.memory_mask_attn(mask);
        }
        input
    }
}

/// A decoder whose layers run one after the other: Burn's, or that of `operations::nn`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a decoder whose layers `checkpoint_decoder` knows",
    note = "`checkpoint_each(&layers, (target, memory), |layer, x| ..)` takes layers of any type"
)]
pub trait DecoderLayers {
    /// A layer.
    type Layer: Module + Sync + 'static;

    /// The layers.
    fn layers(&self) -> Vec<Self::Layer>;

    /// Runs a layer: the target after it.
    fn forward_layer(
        layer: &Self::Layer,
        target: Tensor<3>,
        memory: Tensor<3>,
        masks: DecoderMasks,
    ) -> Tensor<3>;
}

impl DecoderLayers for TransformerDecoder {
    // A layer of Burn's returns its private input type; a decoder returns the tensor.
    type Layer = Self;

    fn layers(&self) -> Vec<Self> {
        let layers = self.layers.iter().map(|layer| Self {
            layers: vec![layer.clone()],
            d_model: self.d_model,
            d_ff: self.d_ff,
            n_heads: self.n_heads,
            n_layers: 1,
            dropout: self.dropout,
            norm_first: self.norm_first,
            quiet_softmax: self.quiet_softmax,
        });
        layers.collect()
    }

    fn forward_layer(
        layer: &Self,
        target: Tensor<3>,
        memory: Tensor<3>,
        masks: DecoderMasks,
    ) -> Tensor<3> {
        layer.forward(masks.mask(TransformerDecoderInput::new(target, memory)))
    }
}

/// `decoder.forward`, each layer in a scope of [`checkpoint`].
///
/// # Shapes
///
/// - target: `[batch, time, d_model]`
/// - memory: `[batch, memory_time, d_model]`
/// - output: `[batch, time, d_model]`
///
/// # Panics
///
/// Those of [`checkpoint_encoder`].
pub fn checkpoint_decoder<D: DecoderLayers>(
    decoder: &D,
    target: Tensor<3>,
    memory: Tensor<3>,
    masks: DecoderMasks,
) -> Tensor<3> {
    decoder.layers().iter().fold(target, |target, layer| {
        let masks = masks.clone();
        let forward = move |layer: &D::Layer, (target, memory)| {
            D::forward_layer(layer, target, memory, masks.clone())
        };
        checkpoint(layer, (target, memory.clone()), forward)
    })
}

/// The sum of a loss over chunks of tokens, each in a scope of [`checkpoint`]: the logits of all
/// tokens never exist at once.
///
/// `loss` gets `head`, the hidden states of a chunk and its targets, and returns the sum over the
/// chunk. The sums of the chunks are added, so the last bits differ from a loss over all tokens at
/// once. With a head in half precision, its gradients are added up in that, and more bits differ: take
/// `operations::linear_cross_entropy`, which adds them up in f32. Divide by the number of tokens that
/// count at the end: the mean of a chunk of padding alone is NaN, and the mean of means weights tokens
/// by their chunk.
///
/// ```
/// # use burn::nn::loss::CrossEntropyLossConfig;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Distribution, Int, Tensor, activation::log_softmax};
/// # use burn_lean::checkpoint_chunks;
/// const PAD: usize = 0;
/// let device = Device::flex().autodiff();
/// let head: Linear = LinearConfig::new(8, 100).init(&device);
/// let hidden = Tensor::<2>::random([9, 8], Distribution::Default, &device);
/// let targets = Tensor::<1, Int>::from_ints([7, 99, 0, 0, 0, 0, 3, 0, 21], &device);
///
/// let tokens = targets.clone().not_equal_scalar(PAD as i64).int().sum().float();
/// let parts = (hidden.clone(), targets.clone());
/// let sum = checkpoint_chunks(&head, parts.0, parts.1, 3, |head, hidden, targets| {
///     let scores = log_softmax(head.forward(hidden), 1);
///     let of_targets = scores.gather(1, targets.clone().unsqueeze_dim(1)).squeeze_dim::<1>(1);
///     of_targets.mask_fill(targets.equal_scalar(PAD as i64), 0.0).sum().neg()
/// });
/// let loss = sum / tokens;
///
/// // What Burn's loss is of all tokens at once.
/// let whole = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![PAD])).init(&device);
/// let whole = whole.forward(head.forward(hidden), targets);
/// assert!((loss.clone() - whole).abs().into_scalar::<f32>() < 1e-5);
/// loss.backward();
/// ```
///
/// # Shapes
///
/// - hidden: `[tokens, d_model]`
/// - targets: `[tokens]`
///
/// # Panics
///
/// The panics of [`checkpoint`], and if `tokens_per_chunk` or the number of tokens is 0, or there is not
/// a target for each token.
pub fn checkpoint_chunks<M, F>(
    head: &M,
    hidden: Tensor<2>,
    targets: Tensor<1, Int>,
    tokens_per_chunk: usize,
    loss: F,
) -> Tensor<1>
where
    M: Module + Sync + 'static,
    F: Fn(&M, Tensor<2>, Tensor<1, Int>) -> Tensor<1> + Clone + Send + Sync + 'static,
{
    assert_eq!(
        targets.dims(),
        [hidden.dims()[0]],
        "checkpoint_chunks: a target for each token"
    );
    let hidden = hidden.split(tokens_per_chunk, 0);
    let targets = targets.split(tokens_per_chunk, 0);
    let sums = hidden.into_iter().zip(targets).map(|chunk| {
        let loss = loss.clone();
        checkpoint(head, chunk, move |head: &M, (hidden, targets)| {
            loss(head, hidden, targets)
        })
    });
    sums.reduce(|sum, chunk| sum + chunk)
        .expect("there is at least one token")
}

/// A recurrent module over a sequence, in scopes of [`checkpoint`] of this many time steps each.
///
/// Backward keeps the input and the state at the beginning of each scope, and the activations of one
/// scope at a time. A scope for each step would keep more than it saves; the square root of the
/// number of steps is a good length.
///
/// `forward` gets the steps of a scope and the state before them, and returns the output of each
/// step and the state after the last. It has to run forward in time: a module that begins with the
/// last step (`BiLstm`, or an `Lstm` with `reverse`) would begin anew in each scope, and compute
/// another function.
///
/// The gradients are those of one call over the whole sequence, up to the order in which those of the
/// weights are added up. In half precision, these sums are rounded after each scope.
///
/// ```
/// use burn::nn::{Lstm, LstmConfig, LstmState};
/// use burn::tensor::{Device, Tensor};
/// use burn_lean::checkpoint_steps;
///
/// let device = Device::flex().autodiff();
/// let lstm: Lstm = LstmConfig::new(3, 8, true).init(&device);
/// let zeros = || Tensor::zeros([2, 8], &device);
/// let input = Tensor::<3>::ones([2, 100, 3], &device);
/// let (output, _) = checkpoint_steps(
///     &lstm,
///     input,
///     LstmState::new(zeros(), zeros()),
///     10,
///     |lstm, input, state| lstm.forward(input, Some(state)),
/// );
/// assert_eq!(output.dims(), [2, 100, 8]);
/// ```
///
/// # Shapes
///
/// - input: `[batch, time, d_input]`
/// - output: `[batch, time, d_output]`
///
/// # Panics
///
/// The panics of [`checkpoint`], and if `steps_per_scope` or the number of steps is 0.
pub fn checkpoint_steps<M, S, F>(
    module: &M,
    input: Tensor<3>,
    state: S,
    steps_per_scope: usize,
    forward: F,
) -> (Tensor<3>, S)
where
    M: Module + Sync + 'static,
    S: Tensors,
    F: Fn(&M, Tensor<3>, S) -> (Tensor<3>, S) + Clone + Send + Sync + 'static,
{
    let mut state = state;
    let mut outputs = Vec::new();
    for steps in input.split(steps_per_scope, 1) {
        let forward = forward.clone();
        let scope = move |module: &M, (steps, state)| forward(module, steps, state);
        let (output, next) = checkpoint(module, (steps, state), scope);
        outputs.push(output);
        state = next;
    }
    (Tensor::cat(outputs, 1), state)
}
