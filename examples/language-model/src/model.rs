//! A decoder in the style of Llama over bytes.

use burn::config::Config;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{DType, Device, Int, Tensor};
use burn_lean::checkpoint_each;
// Modules of Burn's names and fields that save fewer tensors for backward.
use burn_lean::operations::{Attention, linear_cross_entropy, nn};

/// Shape of a [`Decoder`].
#[derive(Config, Debug)]
pub struct DecoderConfig {
    /// The size of the vocabulary: all bytes.
    #[config(default = 256)]
    vocabulary: usize,
    /// The longest text that it sees.
    #[config(default = 128)]
    time: usize,
    /// The width of a token.
    #[config(default = 128)]
    width: usize,
    /// The number of layers.
    #[config(default = 4)]
    depth: usize,
    /// The number of attention heads of a layer.
    #[config(default = 4)]
    heads: usize,
    /// The number of heads that keys and values have; each serves several of the queries.
    #[config(default = 2)]
    key_heads: usize,
    /// The width of the hidden layer of a feed-forward network.
    #[config(default = 384)]
    hidden: usize,
}

/// A language model.
#[derive(Module, Debug)]
pub struct Decoder {
    embedding: nn::Embedding,
    layers: Vec<Layer>,
    norm: nn::RmsNorm,
    head: nn::Linear,
}

/// Attention and a gated feed-forward network, each on a residual path.
#[derive(Module, Debug)]
struct Layer {
    attention_norm: nn::RmsNorm,
    query: nn::Linear,
    key: nn::Linear,
    value: nn::Linear,
    output: nn::Linear,
    rotary: nn::RotaryEncoding,
    heads: usize,
    key_heads: usize,
    feed_forward_norm: nn::RmsNorm,
    gate: nn::SwiGlu,
    down: nn::Linear,
}

impl DecoderConfig {
    /// A model with random weights.
    pub fn init(&self, device: &Device) -> Decoder {
        let linear = |from, to| {
            nn::LinearConfig::new(from, to)
                .with_bias(false)
                .init(device)
        };
        let norm = || nn::RmsNormConfig::new(self.width).init(device);
        let layer = || Layer {
            attention_norm: norm(),
            query: linear(self.width, self.width),
            key: linear(self.width, self.width / self.heads * self.key_heads),
            value: linear(self.width, self.width / self.heads * self.key_heads),
            output: linear(self.width, self.width),
            rotary: nn::RotaryEncodingConfig::new(self.time, self.width / self.heads).init(device),
            heads: self.heads,
            key_heads: self.key_heads,
            feed_forward_norm: norm(),
            gate: nn::SwiGluConfig::new(self.width, self.hidden).init(device),
            down: linear(self.hidden, self.width),
        };
        Decoder {
            embedding: nn::EmbeddingConfig::new(self.vocabulary, self.width).init(device),
            layers: (0..self.depth).map(|_| layer()).collect(),
            norm: norm(),
            head: linear(self.width, self.vocabulary),
        }
    }
}

impl Decoder {
    /// Mean cross entropy of each token's successor, for `tokens`: `[batch, time + 1]`.
    pub fn loss(&self, tokens: Tensor<2, Int>) -> Tensor<1> {
        let [batch, tokens_of_each] = tokens.dims();
        let seen = tokens.clone().narrow(1, 0, tokens_of_each - 1);
        let targets = tokens.narrow(1, 1, tokens_of_each - 1);
        let hidden = self.hidden(seen).flatten::<2>(0, 1);
        let loss = CrossEntropyLossConfig::new().init(&hidden.device());
        let targets = targets.reshape([batch * (tokens_of_each - 1)]);
        // Makes the logits of a few tokens at a time.
        linear_cross_entropy(&loss, hidden, &self.head.weight, None, targets)
    }

    /// The logits of the token that follows `tokens`, `[1, time]`.
    pub fn next(&self, tokens: Tensor<2, Int>) -> Tensor<1> {
        let [_, time] = tokens.dims();
        let last = self.hidden(tokens).narrow(1, time - 1, 1);
        self.head.forward(last).flatten(0, 2).cast(DType::F32)
    }

    /// `[batch, time, width]`
    fn hidden(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let x = self.embedding.forward(tokens);
        // Keeps the input of each layer. Backward computes the rest again.
        let x = checkpoint_each(&self.layers, x, |layer, x| layer.forward(x));
        self.norm.forward(x)
    }
}

impl Layer {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = x.clone() + self.attention(self.attention_norm.forward(x));
        let hidden = self.feed_forward_norm.forward(x.clone());
        x + self.gate.forward_linear(hidden, &self.down)
    }

    fn attention(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, time, width] = x.dims();
        let heads = |of: &nn::Linear, heads| {
            let shape = [batch, time, heads, width / self.heads];
            of.forward(x.clone()).reshape(shape).swap_dims(1, 2)
        };
        let shared = |heads: Tensor<4>| heads.repeat_dim(1, self.heads / self.key_heads);
        let query = self.rotary.forward(heads(&self.query, self.heads));
        let key = self.rotary.forward(heads(&self.key, self.key_heads));
        let value = heads(&self.value, self.key_heads);
        let attended = Attention::new()
            .causal()
            .forward(query, shared(key), shared(value));
        self.output
            .forward(attended.swap_dims(1, 2).reshape([batch, time, width]))
    }
}
