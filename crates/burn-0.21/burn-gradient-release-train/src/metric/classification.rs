use std::sync::Arc;

use burn::{
    tensor::{Int, Tensor, TensorData, Transaction, backend::Backend},
    train::{
        ClassificationOutput,
        metric::{
            Adaptor, ItemLazy, LossInput, Metric, MetricAttributes, MetricMetadata, MetricName,
            Numeric, NumericAttributes, NumericEntry, SerializedEntry,
            state::{FormatOptions, NumericMetricState},
        },
    },
};
use burn_flex::Flex;
use burn_gradient_release_data_parallel::{DataParallel, ReplicaError};

use crate::GatherOutput;

/// The loss of a batch, and how many of its items were classified correctly.
///
/// In place of Burn's [`ClassificationOutput`], whose scores replicas would send to the first one
/// in every iteration: of this, each sends 24 bytes. For Burn's `LossMetric` and for
/// [`CountedAccuracyMetric`]; what else is to be known of the scores needs Burn's output.
///
/// ```
/// # use burn::{tensor::backend::Backend, train::ClassificationOutput};
/// use burn_gradient_release_train::metric::ClassificationCounts;
///
/// # fn of<B: Backend>(output: ClassificationOutput<B>) -> ClassificationCounts<B> {
/// // In `TrainStep::step` and in `InferenceStep::step`.
/// ClassificationCounts::from(output)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ClassificationCounts<B: Backend> {
    /// The loss.
    pub loss: Tensor<B, 1>,
    /// Number of items whose target has the highest score: one number.
    pub hits: Tensor<B, 1, Int>,
    /// Number of items.
    pub items: usize,
}

impl<B: Backend> ClassificationCounts<B> {
    fn hits(&self) -> i64 {
        let hits = self.hits.clone().into_data();
        hits.iter::<i64>().sum()
    }
}

impl<B: Backend> From<ClassificationOutput<B>> for ClassificationCounts<B> {
    fn from(output: ClassificationOutput<B>) -> Self {
        let [items, _] = output.output.dims();
        let best = output.output.argmax(1).reshape([items]);
        Self {
            loss: output.loss,
            hits: best.equal(output.targets).int().sum(),
            items,
        }
    }
}

impl<B: Backend> ItemLazy for ClassificationCounts<B> {
    type ItemSync = ClassificationCounts<Flex>;

    fn sync(self) -> ClassificationCounts<Flex> {
        let [loss, hits] = Transaction::default()
            .register(self.loss)
            .register(self.hits)
            .execute()
            .try_into()
            .expect("as many as were registered");
        let device = &Default::default();
        ClassificationCounts {
            loss: Tensor::from_data(loss, device),
            hits: Tensor::from_data(hits, device),
            items: self.items,
        }
    }
}

impl<B: Backend> GatherOutput for ClassificationCounts<B> {
    fn gather(self, parallel: &DataParallel) -> Result<Self, ReplicaError> {
        if parallel.replicas().size() == 1 {
            return Ok(self);
        }
        let dtype = self.loss.dtype();
        let loss = self.loss.clone().mean().into_data();
        let loss = loss.iter::<f64>().next().expect("a mean is a number");
        let own = [loss, self.hits() as f64, self.items as f64];
        let all = parallel.gather_numbers("the loss and the hits of a batch", own)?;
        if all.is_empty() {
            return Ok(self);
        }
        let losses: Vec<_> = all.iter().map(|[loss, ..]| *loss).collect();
        let [hits, items] = [1, 2].map(|of| all.iter().map(|numbers| numbers[of]).sum::<f64>());
        let losses = TensorData::new(losses, [all.len()]).convert_dtype(dtype);
        let (on_loss, on_hits) = (self.loss.device(), self.hits.device());
        Ok(Self {
            // As the gradients: each replica counts the same.
            loss: Tensor::<B, 1>::from_data(losses, (&on_loss, dtype)).mean(),
            hits: Tensor::from_data([hits as i64], &on_hits),
            items: items as usize,
        })
    }
}

impl<B: Backend> Adaptor<LossInput<B>> for ClassificationCounts<B> {
    fn adapt(&self) -> LossInput<B> {
        LossInput::new(self.loss.clone())
    }
}

impl<B: Backend> Adaptor<CountedAccuracyInput> for ClassificationCounts<B> {
    fn adapt(&self) -> CountedAccuracyInput {
        CountedAccuracyInput {
            hits: self.hits() as u64,
            items: self.items,
        }
    }
}

/// The input of [`CountedAccuracyMetric`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedAccuracyInput {
    /// Number of items that were classified correctly.
    pub hits: u64,
    /// Number of items.
    pub items: usize,
}

/// Burn's `AccuracyMetric`, of what was counted: the same name, the same numbers.
#[derive(Clone)]
pub struct CountedAccuracyMetric {
    name: MetricName,
    state: NumericMetricState,
}

impl CountedAccuracyMetric {
    /// Creates the metric.
    pub fn new() -> Self {
        Self {
            name: Arc::new("Accuracy".into()),
            state: NumericMetricState::default(),
        }
    }
}

impl Default for CountedAccuracyMetric {
    fn default() -> Self {
        Self::new()
    }
}

impl Metric for CountedAccuracyMetric {
    type Input = CountedAccuracyInput;

    fn update(&mut self, input: &Self::Input, _metadata: &MetricMetadata) -> SerializedEntry {
        let accuracy = input.hits as f64 / input.items as f64;
        let format = FormatOptions::new(self.name()).unit("%").precision(2);
        self.state.update(100.0 * accuracy, input.items, format)
    }

    fn clear(&mut self) {
        self.state.reset();
    }

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: Some("%".into()),
            higher_is_better: true,
        }
        .into()
    }
}

impl Numeric for CountedAccuracyMetric {
    fn value(&self) -> NumericEntry {
        self.state.current_value()
    }

    fn running_value(&self) -> NumericEntry {
        self.state.running_value()
    }
}

impl std::fmt::Debug for CountedAccuracyMetric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CountedAccuracyMetric")
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use burn::{
        data::dataloader::Progress,
        train::metric::{AccuracyInput, AccuracyMetric, LossMetric},
    };
    use burn_gradient_release_data_parallel::Replicas;
    use lean_replicas::Threads;

    use super::*;

    /// The scores of a share: 7 items on the first replica, 6 on the others.
    fn output(rank: usize, iteration: usize) -> ClassificationOutput<Flex> {
        let (items, classes) = (if rank == 0 { 7 } else { 6 }, 10);
        let noise = |at: usize| {
            let at = at + 1000 * rank + 77_777 * iteration;
            (at.wrapping_mul(2_654_435_761) >> 7) % 1013
        };
        let scores = (0..items * classes).map(|at| noise(at) as f32 / 1013.0);
        // The best class of every other item.
        let scores: Vec<f32> = scores.collect();
        let best = |item: usize| {
            let of_item = &scores[item * classes..][..classes];
            let first = of_item.iter().copied().fold(0.0, f32::max);
            of_item.iter().position(|score| *score == first).unwrap()
        };
        let target = |item: usize| (best(item) + item % 2) as i32 % classes as i32;
        let targets: Vec<_> = (0..items).map(target).collect();
        let device = Default::default();
        let loss = noise(iteration) as f32 / 7.0;
        ClassificationOutput::new(
            Tensor::from_data([loss], &device),
            Tensor::from_data(TensorData::new(scores, [items, classes]), &device),
            Tensor::from_data(TensorData::new(targets, [items]), &device),
        )
    }

    fn metadata() -> MetricMetadata {
        MetricMetadata {
            progress: Progress::new(1, 1),
            global_progress: Progress::new(0, 1),
            iteration: Some(0),
            lr: None,
        }
    }

    /// What the first of three replicas logs as loss and accuracy of two iterations.
    fn logged<O, A: Metric>(
        of: impl Fn(ClassificationOutput<Flex>) -> O + Sync,
        accuracy: impl Fn() -> A + Sync,
    ) -> Vec<String>
    where
        O: GatherOutput + Send + Adaptor<LossInput<Flex>> + Adaptor<A::Input>,
    {
        let (of, accuracy) = (&of, &accuracy);
        let replica = move |threads: Threads| {
            let parallel = DataParallel::new(Replicas::new(move || Ok(threads)).unwrap());
            let rank = parallel.replicas().rank();
            let (mut loss, mut accuracy) = (LossMetric::<Flex>::new(), accuracy());
            let mut log = Vec::new();
            for iteration in 0..2 {
                let gathered = of(output(rank, iteration)).gather(&parallel).unwrap();
                let metadata = metadata();
                let (losses, hits): (LossInput<Flex>, A::Input) =
                    (gathered.adapt(), gathered.adapt());
                log.push(loss.update(&losses, &metadata).serialized);
                log.push(accuracy.update(&hits, &metadata).serialized);
            }
            log
        };
        thread::scope(|scope| {
            let threads = Threads::new(3).into_iter();
            let threads = threads.map(|thread| scope.spawn(move || replica(thread)));
            let mut threads: Vec<_> = threads.collect();
            threads.swap_remove(0).join().unwrap()
        })
    }

    #[test]
    fn replicas_log_of_counts_what_they_log_of_scores() {
        let of_scores = logged(|output| output, AccuracyMetric::<Flex>::new);
        let of_counts = logged(ClassificationCounts::from, CountedAccuracyMetric::new);
        assert_eq!(of_counts, of_scores);
    }

    #[test]
    fn one_process_logs_what_scores_log() {
        let output = || output(0, 0);
        let counts = ClassificationCounts::from(output()).sync();
        let scores = output().sync();
        let metadata = metadata();
        let counts: CountedAccuracyInput = counts.adapt();
        let scores: AccuracyInput<Flex> = scores.adapt();
        let of_counts = CountedAccuracyMetric::new().update(&counts, &metadata);
        let of_scores = AccuracyMetric::<Flex>::new().update(&scores, &metadata);
        assert_eq!(of_counts.serialized, of_scores.serialized);
        assert_eq!(of_counts.formatted, of_scores.formatted);
    }
}
