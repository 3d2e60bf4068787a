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
use benchmarks::results::LossChunk;
use benchmarks::workload::{HostBatch, Workload};
use burn::backend::{Autodiff, Flex};
use burn::optim::{AdamW, AdamWConfig, GradientsParams, Optimizer};
use burn_gradient_release::{
    AdaptiveClippingConfig, GradientRelease, NormClipping, ReleaseOptimizer, WithGradientRelease,
};
use peak_alloc::PeakAlloc;
use std::time::Instant;
use vit_0_21::config::Preset;
use vit_0_21::model::{Vit, VitConfig};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

type B = GradientRelease<Autodiff<Flex>>;
type Release = ReleaseOptimizer<AdamW, Vit<B>, B>;

struct Training {
    name: &'static str,
    optim: Release,
    model: Option<Vit<B>>,
    seconds: Vec<f64>,
    peak: usize,
}

impl Training {
    fn new(name: &'static str, config: &VitConfig, adapt: fn(Release) -> Release) -> Self {
        let model = Workload::init::<B>(config, false, &Default::default());
        Self {
            name,
            optim: adapt(AdamWConfig::new().init().with_gradient_release()),
            model: Some(model),
            seconds: Vec::new(),
            peak: 0,
        }
    }

    fn step(&mut self, batch: &HostBatch) -> Result<()> {
        let forward = |model: &Vit<B>| {
            <VitConfig as Workload>::loss::<B>(
                model,
                batch.clone(),
                LossChunk::WHOLE,
                &Default::default(),
            )
        };
        let model = self.model.take().context("a step has failed")?;
        let before = ALLOCATOR.current_usage();
        ALLOCATOR.reset_peak_usage();
        let start = Instant::now();
        let model = if self.optim.needs_two_passes() {
            self.optim.two_passes(1e-4, model, forward).0
        } else {
            let model = self.optim.arm(1e-4, model);
            let grads = GradientsParams::from_grads(forward(&model).backward(), &model);
            self.optim.step(1e-4, model, grads)
        };
        self.seconds.push(start.elapsed().as_secs_f64());
        self.peak = ALLOCATOR.peak_usage() - before;
        self.model = Some(model);
        Ok(())
    }

    /// Milliseconds, without the first step, which makes the states.
    fn median(&self) -> f64 {
        let mut seconds = self.seconds[1..].to_vec();
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2] * 1e3
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|number| number.parse::<usize>());
    let batch_size = arguments.next().transpose()?.unwrap_or(1);
    let rounds = arguments.next().transpose()?.unwrap_or(9);
    let config = Preset::Small.config(224, 3, 1000);
    let batch = config.batches(batch_size, 1, 7).remove(0);
    let global =
        |optim: Release| optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
    let mut trainings = [
        Training::new("no clipping", &config, |optim| optim),
        Training::new("global norm, two passes", &config, global),
        Training::new("norm reported", &config, |optim| optim.with_grad_norm()),
        Training::new("adaptive (AGC)", &config, |optim| {
            optim.with_norm_clipping(NormClipping::Adaptive(AdaptiveClippingConfig::new()))
        }),
    ];
    for round in 0..=rounds {
        let mut order: Vec<_> = (0..trainings.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            trainings[index].step(&batch)?;
        }
    }
    let (time, peak) = (trainings[0].median(), trainings[0].peak as f64);
    println!("ViT-S/16, batch {batch_size}; the peak is beyond parameters and optimizer state");
    println!(
        "{:24} {:>9} {:>7} {:>10} {:>7}",
        "", "ms", "ratio", "peak, MiB", "ratio"
    );
    for training in &trainings {
        println!(
            "{:24} {:9.1} {:7.3} {:10.1} {:7.3}",
            training.name,
            training.median(),
            training.median() / time,
            training.peak as f64 / f64::from(1 << 20),
            training.peak as f64 / peak
        );
    }
    Ok(())
}
