//! The classifier: a transformer encoder over words.

use burn::{
    nn::{
        Embedding, EmbeddingConfig, Linear, LinearConfig,
        attention::SeqLengthOption,
        loss::CrossEntropyLossConfig,
        transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput},
    },
    prelude::*,
    tensor::backend::AutodiffBackend,
    train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep},
};

use crate::data::TextClassificationBatch;

/// The shape of a classifier.
#[derive(Config, Debug)]
pub struct TextClassificationModelConfig {
    transformer: TransformerEncoderConfig,
    n_classes: usize,
    vocab_size: usize,
    seq_length: SeqLengthOption,
}

/// Classifies texts.
#[derive(Module, Debug)]
pub struct TextClassificationModel<B: Backend> {
    embedding_token: Embedding<B>,
    embedding_pos: Embedding<B>,
    transformer: TransformerEncoder<B>,
    output: Linear<B>,
    n_classes: usize,
}

impl TextClassificationModelConfig {
    /// A model with random weights.
    ///
    /// # Panics
    ///
    /// If the sequences have no maximum length, as every position needs an embedding.
    pub fn init<B: Backend>(&self, device: &B::Device) -> TextClassificationModel<B> {
        let max_seq_length = match self.seq_length {
            SeqLengthOption::Fixed(max) | SeqLengthOption::Max(max) => max,
            SeqLengthOption::NoMax => panic!("give the sequences a maximum length"),
        };
        let d_model = self.transformer.d_model;

        TextClassificationModel {
            embedding_token: EmbeddingConfig::new(self.vocab_size, d_model).init(device),
            embedding_pos: EmbeddingConfig::new(max_seq_length, d_model).init(device),
            transformer: self.transformer.init(device),
            output: LinearConfig::new(d_model, self.n_classes).init(device),
            n_classes: self.n_classes,
        }
    }
}

impl<B: Backend> TextClassificationModel<B> {
    /// The logits of every text, `[batch, classes]`, and the mean loss.
    pub fn forward(&self, item: TextClassificationBatch<B>) -> ClassificationOutput<B> {
        let [batch_size, seq_length] = item.tokens.dims();
        let device = item.tokens.device();

        let positions = Tensor::arange(0..seq_length as i64, &device)
            .reshape([1, seq_length])
            .repeat_dim(0, batch_size);
        let embedding =
            (self.embedding_token.forward(item.tokens) + self.embedding_pos.forward(positions)) / 2;

        let encoded = self
            .transformer
            .forward(TransformerEncoderInput::new(embedding).mask_pad(item.mask_pad));
        let output = self
            .output
            .forward(encoded)
            .slice([0..batch_size, 0..1])
            .reshape([batch_size, self.n_classes]);

        let loss = CrossEntropyLossConfig::new()
            .init(&device)
            .forward(output.clone(), item.labels.clone());
        ClassificationOutput::new(loss, output, item.labels)
    }
}

impl<B: AutodiffBackend> TrainStep for TextClassificationModel<B> {
    type Input = TextClassificationBatch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, item: TextClassificationBatch<B>) -> TrainOutput<ClassificationOutput<B>> {
        let item = self.forward(item);
        let grads = item.loss.backward();

        TrainOutput::new(self, grads, item)
    }
}

impl<B: Backend> InferenceStep for TextClassificationModel<B> {
    type Input = TextClassificationBatch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, item: TextClassificationBatch<B>) -> ClassificationOutput<B> {
        self.forward(item)
    }
}
