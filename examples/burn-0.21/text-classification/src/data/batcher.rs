use std::sync::Arc;

use burn::{
    data::dataloader::batcher::Batcher,
    nn::attention::{SeqLengthOption, generate_padding_mask},
    prelude::*,
};

use super::{TextClassificationItem, WordTokenizer};

/// Turns texts into tensors.
#[derive(Clone, Debug)]
pub struct TextClassificationBatcher {
    tokenizer: Arc<WordTokenizer>,
    seq_length: SeqLengthOption,
}

impl TextClassificationBatcher {
    /// Creates a batcher that pads or cuts texts to this length in tokens.
    pub fn new(tokenizer: Arc<WordTokenizer>, seq_length: SeqLengthOption) -> Self {
        Self {
            tokenizer,
            seq_length,
        }
    }
}

/// A batch of texts.
#[derive(Clone, Debug)]
pub struct TextClassificationBatch<B: Backend> {
    /// Tokens, `[batch, time]`.
    pub tokens: Tensor<B, 2, Int>,
    /// Classes, `[batch]`.
    pub labels: Tensor<B, 1, Int>,
    /// True where a token is padding, `[batch, time]`.
    pub mask_pad: Tensor<B, 2, Bool>,
}

impl<B: Backend> Batcher<B, TextClassificationItem, TextClassificationBatch<B>>
    for TextClassificationBatcher
{
    fn batch(
        &self,
        items: Vec<TextClassificationItem>,
        device: &B::Device,
    ) -> TextClassificationBatch<B> {
        let labels: Vec<i64> = items.iter().map(|item| item.label as i64).collect();
        let tokens = (items.iter())
            .map(|item| self.tokenizer.encode(&item.text))
            .collect();
        let padded = generate_padding_mask(WordTokenizer::PAD, tokens, self.seq_length, device);

        TextClassificationBatch {
            tokens: padded.tensor,
            labels: Tensor::from_data(labels.as_slice(), device),
            mask_pad: padded.mask,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    #[test]
    fn pads_to_the_longest_and_masks_the_padding() {
        let tokenizer = Arc::new(WordTokenizer::new(["not", "good"]));
        let batcher = TextClassificationBatcher::new(tokenizer, SeqLengthOption::Max(8));
        let items = [("good", 1), ("not good", 0)].map(|(text, label)| TextClassificationItem {
            text: text.into(),
            label,
        });

        let batch: TextClassificationBatch<Flex> = batcher.batch(items.into(), &Default::default());

        let tokens = batch.tokens.into_data().convert::<i64>();
        assert_eq!(tokens, TensorData::from([[1i64, 4, 0], [1, 3, 4]]));
        let mask = batch.mask_pad.into_data().convert::<bool>();
        let padding = TensorData::from([[false, false, true], [false, false, false]]);
        assert_eq!(mask, padding.convert::<bool>());
        let labels = batch.labels.into_data().convert::<i64>();
        assert_eq!(labels, TensorData::from([1i64, 0]));
    }
}
