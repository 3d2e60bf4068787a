//! A decoder of the Llama family. Fields have the names of the files.

use std::path::Path;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_lean::checkpoint_each;
use burn_lean::operations::{Attention, linear_cross_entropy, nn, swiglu_linear};
use burn_lean::safetensors::{SafetensorsError, Weights};

use lean_text::Text;

use crate::config::ModelConfig;

/// A language model.
#[derive(Module, Debug)]
pub struct Decoder {
    model: Body,
    lm_head: Option<nn::Linear>,
}

#[derive(Module, Debug)]
struct Body {
    embed_tokens: nn::Embedding,
    layers: Vec<Layer>,
    norm: nn::RmsNorm,
}

#[derive(Module, Debug)]
struct Layer {
    self_attn: SelfAttention,
    mlp: Mlp,
    input_layernorm: nn::RmsNorm,
    post_attention_layernorm: nn::RmsNorm,
}

#[derive(Module, Debug)]
struct SelfAttention {
    q_proj: nn::Linear,
    k_proj: nn::Linear,
    v_proj: nn::Linear,
    o_proj: nn::Linear,
    q_norm: Option<nn::RmsNorm>,
    k_norm: Option<nn::RmsNorm>,
    rotary: nn::RotaryEncoding,
    head_size: usize,
    #[module(skip)]
    window: Option<usize>,
}

#[derive(Module, Debug)]
struct Mlp {
    gate_proj: nn::Linear,
    up_proj: nn::Linear,
    down_proj: nn::Linear,
}

/// The weights in a folder.
///
/// # Errors
///
/// Those of [`Weights::open`].
pub fn open(folder: &Path) -> Result<Weights, SafetensorsError> {
    // Tables of older files, that every reader computes.
    let is_table = |name: &str| name.ends_with(".rotary_emb.inv_freq");
    Ok(Weights::open(folder)?.without(is_table))
}

/// Texts, and where they have a next token to learn.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[batch, time]`
    pub tokens: Tensor<2, Int>,
    /// Indices into the flattened tokens whose successors count: `[places]`.
    pub places: Tensor<1, Int>,
    /// The successors: `[places]`.
    pub targets: Tensor<1, Int>,
}

impl Batch {
    /// Pads texts at their ends, where no token of theirs sees it and no loss counts.
    pub fn new(texts: &[&Text], device: &Device) -> Self {
        let lengths = texts.iter().map(|text| text.tokens.len());
        let time = lengths.max().unwrap_or(0);
        let (mut tokens, mut places, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        for (row, text) in texts.iter().enumerate() {
            for at in 1..text.tokens.len() {
                if text.counts[at] {
                    places.push((row * time + at - 1) as i32);
                    targets.push(text.tokens[at] as i32);
                }
            }
            let padding = std::iter::repeat_n(0, time - text.tokens.len());
            tokens.extend(text.tokens.iter().map(|&token| token as i32).chain(padding));
        }
        let line =
            |values: Vec<i32>| -> Tensor<1, Int> { Tensor::from_data(values.as_slice(), device) };
        Self {
            tokens: Tensor::from_data(TensorData::new(tokens, [texts.len(), time]), device),
            places: line(places),
            targets: line(targets),
        }
    }
}

impl ModelConfig {
    /// A model for texts of at most so many tokens. Its weights are drawn when they are first read.
    pub fn init(&self, time: usize, device: &Device) -> Decoder {
        let linear = |from, to, has_bias| {
            let config = nn::LinearConfig::new(from, to).with_bias(has_bias);
            config.init(device)
        };
        let norm = |width| {
            let config = nn::RmsNormConfig::new(width).with_epsilon(self.epsilon);
            config.init(device)
        };
        let (queries, keys) = (self.heads * self.head_size, self.key_heads * self.head_size);
        let rotary = nn::RotaryEncodingConfig::new(time, self.head_size).with_theta(self.theta);
        let rotary = rotary.init_scaled(&self.scaling, device);
        let query_norm = || self.has_query_norms.then(|| norm(self.head_size));
        let layer = |&window: &Option<usize>| Layer {
            self_attn: SelfAttention {
                q_proj: linear(self.width, queries, self.has_query_biases),
                k_proj: linear(self.width, keys, self.has_query_biases),
                v_proj: linear(self.width, keys, self.has_query_biases),
                o_proj: linear(queries, self.width, self.has_output_bias),
                q_norm: query_norm(),
                k_norm: query_norm(),
                rotary: rotary.clone(),
                head_size: self.head_size,
                window,
            },
            mlp: Mlp {
                gate_proj: linear(self.width, self.hidden, self.has_mlp_biases),
                up_proj: linear(self.width, self.hidden, self.has_mlp_biases),
                down_proj: linear(self.hidden, self.width, self.has_mlp_biases),
            },
            input_layernorm: norm(self.width),
            post_attention_layernorm: norm(self.width),
        };
        Decoder {
            model: Body {
                embed_tokens: nn::EmbeddingConfig::new(self.vocabulary, self.width).init(device),
                layers: self.windows.iter().map(layer).collect(),
                norm: norm(self.width),
            },
            lm_head: (!self.is_tied).then(|| linear(self.width, self.vocabulary, false)),
        }
    }
}

impl Decoder {
    /// Mean cross entropy of the successors that count.
    pub fn loss(&self, batch: Batch) -> Tensor<1> {
        let hidden = self.hidden(batch.tokens).flatten::<2>(0, 1);
        let hidden = hidden.select(0, batch.places);
        let loss = CrossEntropyLossConfig::new().init(&hidden.device());
        // Makes the logits of a few tokens at a time.
        linear_cross_entropy(&loss, hidden, self.head(), None, batch.targets)
    }

    /// The logits of the successors, `[batch, time, vocabulary]`, in f32.
    pub fn logits(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let head = self.head().unsqueeze();
        self.hidden(tokens).matmul(head).cast(DType::F32)
    }

    /// `[width, vocabulary]`
    fn head(&self) -> Tensor<2> {
        match &self.lm_head {
            Some(head) => head.weight.val(),
            None => self.model.embed_tokens.weight.val().transpose(),
        }
    }

    /// `[batch, time, width]`
    fn hidden(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let x = self.model.embed_tokens.forward(tokens);
        // Keeps the input of each layer. Backward computes the rest again.
        let x = checkpoint_each(&self.model.layers, x, Layer::forward);
        self.model.norm.forward(x)
    }
}

impl Layer {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let attended = self
            .self_attn
            .forward(self.input_layernorm.forward(x.clone()));
        let x = x + attended;
        let hidden = self
            .mlp
            .forward(self.post_attention_layernorm.forward(x.clone()));
        x + hidden
    }
}

impl SelfAttention {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, time, _] = x.dims();
        let heads = |linear: &nn::Linear| {
            let y = linear.forward(x.clone());
            let heads = y.dims()[2] / self.head_size;
            y.reshape([batch, time, heads, self.head_size])
                .swap_dims(1, 2)
        };
        let query = self.rotated(heads(&self.q_proj), self.q_norm.as_ref());
        let key = self.rotated(heads(&self.k_proj), self.k_norm.as_ref());
        let mut attention = Attention::new().causal();
        if let Some(window) = self.window {
            attention = attention.with_window(window);
        }
        let attended = attention
            .forward(query, key, heads(&self.v_proj))
            .swap_dims(1, 2);
        let [.., heads, size] = attended.dims();
        self.o_proj
            .forward(attended.reshape([batch, time, heads * size]))
    }

    /// Queries or keys at their positions. A pair to rotate is a feature of the first half of a head
    /// and its like of the second, where Burn's stand side by side: features of both are brought into
    /// that order, which changes no product of a query and a key.
    fn rotated(&self, x: Tensor<4>, norm: Option<&nn::RmsNorm>) -> Tensor<4> {
        let x = match norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        let [batch, heads, time, size] = x.dims();
        let halves: Tensor<5> = x.reshape([batch, heads, time, 2, size / 2]);
        let pairs = halves.swap_dims(3, 4).reshape([batch, heads, time, size]);
        self.rotary.forward(pairs)
    }
}

impl Mlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let gate = self.gate_proj.forward(x.clone());
        let nn::Linear { weight, bias } = &self.down_proj;
        let bias = bias.as_ref().map(|bias| bias.val());
        swiglu_linear(gate, self.up_proj.forward(x), weight, bias)
    }
}
