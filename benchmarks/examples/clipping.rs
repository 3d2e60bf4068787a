//! Time and peak of a step that is clipped by the global norm, in two backward passes, beside one
//! without clipping and one that measures the norm: ViT-S/16 on Flex, AdamW, gradient release.
//!
//! All step in turn in one process, every second turn in reverse; printed are medians and ratios.
//! With glibc, tell its allocator to keep memory:
//!
//! ```sh
//! MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=1099511627776 \
//!     cargo run --release -p benchmarks --example clipping -- 1 9
//! ```
//!
//! The arguments are the batch size and the number of rounds.

use anyhow::{Context, Result};
use benchmarks::results::median;
use benchmarks::shape::Shape;
use burn::backend::{Autodiff, Flex};
use burn::optim::{AdamW, AdamWConfig, GradientsParams, Optimizer};
use burn_gradient_release::{
    AdaptiveClippingConfig, GradientRelease, NormClipping, ReleaseOptimizer, WithGradientRelease,
};
use peak_alloc::PeakAlloc;
use std::time::Instant;
use vit_0_21::data::Batch;
use vit_0_21::model::Vit;
use vit_inputs::Preset;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

type B = GradientRelease<Autodiff<Flex>>;
type Release = ReleaseOptimizer<AdamW, Vit<B>, B>;

type Adapt = fn(Release) -> Release;

const WAYS: [(&str, Adapt); 4] = [
    ("no clipping", |optim| optim),
    ("global norm, two passes", |optim| {
        optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 })
    }),
    ("norm reported", |optim| optim.with_grad_norm()),
    ("adaptive (AGC)", |optim| {
        optim.with_norm_clipping(NormClipping::Adaptive(AdaptiveClippingConfig::new()))
    }),
];

struct Training {
    optim: Release,
    model: Option<Vit<B>>,
    milliseconds: Vec<f64>,
    peak: usize,
}

impl Training {
    fn step(&mut self, batch: &Batch<B>) -> Result<()> {
        let model = self.model.take().context("a step has failed")?;
        let before = ALLOCATOR.current_usage();
        ALLOCATOR.reset_peak_usage();
        let start = Instant::now();
        let model = if self.optim.needs_two_passes() {
            let loss = |model: &Vit<B>| model.forward_classification(batch.clone()).loss;
            self.optim.two_passes(1e-4, model, loss).0
        } else {
            let model = self.optim.arm(1e-4, model);
            let loss = model.forward_classification(batch.clone()).loss;
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            self.optim.step(1e-4, model, grads)
        };
        self.milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
        self.peak = ALLOCATOR.peak_usage() - before;
        self.model = Some(model);
        Ok(())
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|number| number.parse::<usize>());
    let batch_size = arguments.next().transpose()?.unwrap_or(1);
    let rounds = arguments.next().transpose()?.unwrap_or(9);
    let config = Preset::Small.config(224, 3, 1000);
    let batch = Shape::Vit(config.clone())
        .batches(batch_size, 1, 7)
        .remove(0);
    let batch = Batch::of(batch.pixels, batch.shape, batch.labels, &Default::default());
    let mut trainings = WAYS.map(|(_, adapt)| Training {
        optim: adapt(AdamWConfig::new().init().with_gradient_release()),
        model: Some(Vit::new(&config, &Default::default())),
        milliseconds: Vec::new(),
        peak: 0,
    });
    for round in 0..=rounds {
        let mut order: Vec<_> = (0..trainings.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            trainings[index].step(&batch)?;
        }
    }
    println!("ViT-S/16, batch {batch_size}; the peak is beyond parameters and optimizer state");
    println!("{:24} {:>9} {:>7} {:>10}", "", "ms", "ratio", "peak, MiB");
    // Without the first step, which makes the states.
    let times = trainings
        .each_ref()
        .map(|training| median(&training.milliseconds[1..]).unwrap_or(f64::NAN));
    for (((name, _), training), time) in WAYS.iter().zip(&trainings).zip(times) {
        let ratio = time / times[0];
        let peak = training.peak as f64 / f64::from(1 << 20);
        println!("{name:24} {time:9.1} {ratio:7.3} {peak:10.1}");
    }
    Ok(())
}
