//! Measures memory and time of a step, each mode in a process of its own.

use crate::backend::{self, Job};
use crate::config::{Checkpointing, Engine, Mode, Preset};
use crate::data::{Batch, Dataset, Source, Wanted};
use crate::digest;
use crate::memory::{Meter, human};
use crate::mode::{self, Stepper};
use crate::model::{Vit, VitConfig};
use anyhow::{Context, Result, bail};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset as _;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Device, ElementConversion};
use burn_gradient_release::ReleaseBackend;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use serde::{Deserialize, Serialize};
use std::env;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The hidden subcommand behind which a measuring process works.
pub const CHILD: &str = "bench-child";

/// Keeps glibc from handing memory back to the kernel and fetching it again in every step, which
/// would drown the difference between two modes in page faults.
const ALLOCATOR: [(&str, &str); 2] = [
    ("MALLOC_MMAP_THRESHOLD_", "4294967296"),
    ("MALLOC_TRIM_THRESHOLD_", "1099511627776"),
];

/// Different synthetic batches in a run; more would only take memory.
const BATCHES: usize = 4;

/// One run to measure; travels to the measuring process as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Shape by name.
    pub preset: Preset,
    /// Backend, mode, checkpointing and optimizer.
    pub engine: Engine,
    /// Images in a step.
    pub batch_size: usize,
    /// Steps to take.
    pub steps: usize,
    /// Learning rate.
    pub learning_rate: f64,
    /// Seed of weights and images.
    pub seed: u64,
    /// Name or folder of the images.
    pub data: String,
    /// Asked-for size of an image.
    pub image_size: Option<usize>,
    /// Asked-for size of a patch.
    pub patch_size: Option<usize>,
}

impl Spec {
    /// The images, and a model of the preset that takes them.
    pub fn load(&self) -> Result<(Dataset, VitConfig)> {
        let patch_size = self.patch_size.unwrap_or(self.preset.patch_size());
        let source: Source = self.data.parse()?;
        let data = if source == Source::Synthetic {
            let (size, channels, classes) = match self.preset {
                Preset::Tiny => (8, 1, 10),
                Preset::Small | Preset::Base | Preset::Large => (224, 3, 1000),
            };
            let wanted = Wanted {
                image_size: Some(self.image_size.unwrap_or(size)),
                patch_size,
            };
            let images = self.batch_size * self.steps.min(BATCHES);
            Dataset::synthetic(wanted.size(size)?, channels, classes, images, self.seed)
        } else {
            Dataset::load(
                &source,
                Wanted {
                    image_size: self.image_size,
                    patch_size,
                },
            )?
        };
        let mut model = self.preset.config(data.size, data.channels, data.classes);
        model.patch_size = patch_size;
        Ok((data, model))
    }
}

/// What one run measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// How the optimizer got its gradients.
    pub mode: Mode,
    /// Where the tensors lived.
    pub backend: String,
    /// Shape by name.
    pub preset: Preset,
    /// Who stepped.
    pub optimizer: String,
    /// What the forward pass kept.
    pub checkpointing: Checkpointing,
    /// Images in a step.
    pub batch_size: usize,
    /// Computed: numbers in the model, times four.
    pub parameter_bytes: u64,
    /// Measured: what dropping the optimizer after the last step set free.
    pub optimizer_state_bytes: Option<u64>,
    /// Computed: numbers in the largest parameter, times four.
    pub largest_gradient_bytes: u64,
    /// Measured: what the last forward pass left alive, its batch included.
    pub activation_bytes: Option<u64>,
    /// Measured: the most that lived at once in any step, the first included.
    pub peak_bytes: Option<u64>,
    /// Measured in a run of its own, plus `largest_gradient_bytes`.
    pub ideal_peak_bytes: Option<u64>,
    /// Seconds of every step.
    pub step_seconds: Vec<f64>,
    /// Loss of the last step.
    pub final_loss: f64,
    /// SHA-256 of the weights after the last step.
    pub weights_digest: String,
}

/// Measures `modes` in turn, `repeat` times over, and hands out each result as it comes.
pub fn run(
    spec: &Spec,
    modes: &[Mode],
    repeat: usize,
    mut each: impl FnMut(&Measured) -> Result<()>,
) -> Result<()> {
    backend::require(spec.engine.backend)?;
    // The floor does not depend on the mode that is compared with it.
    let ideal = if spec.engine.backend.is_on_heap() {
        in_a_process(spec, Mode::Ideal)?.ideal_peak_bytes
    } else {
        None
    };
    for _ in 0..repeat {
        for mode in modes {
            let mut measured = in_a_process(spec, *mode)?;
            measured.ideal_peak_bytes = ideal;
            each(&measured)?;
        }
    }
    Ok(())
}

fn in_a_process(spec: &Spec, mode: Mode) -> Result<Measured> {
    let mut spec = spec.clone();
    spec.engine.mode = mode;
    let mut command = Command::new(env::current_exe().context("cannot find this program")?);
    command.arg(CHILD).arg(serde_json::to_string(&spec)?);
    for (name, value) in ALLOCATOR {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let output = command
        .stdin(Stdio::null())
        .output()
        .context("cannot start the measuring process")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let text = text.trim().trim_start_matches("error: ");
        if text.is_empty() {
            bail!("the measuring process ended with {}", output.status);
        }
        bail!("{text}");
    }
    serde_json::from_slice(&output.stdout).context("the measuring process wrote no result")
}

/// The work of the measuring process: one run, one line.
pub fn child(spec: &str) -> Result<String> {
    let spec: Spec = serde_json::from_str(spec).context("not a run to measure")?;
    let (data, model) = spec.load()?;
    let measured = backend::run(
        &spec.engine,
        Measure {
            spec: &spec,
            data: &data,
            config: &model,
        },
    )?;
    Ok(serde_json::to_string(&measured)?)
}

struct Measure<'a> {
    spec: &'a Spec,
    data: &'a Dataset,
    config: &'a VitConfig,
}

impl Job for Measure<'_> {
    type Output = Measured;

    fn plain<B: AutodiffBackend>(self, device: Device<B>) -> Result<Measured> {
        let optimizer = mode::plain(self.spec.engine.optimizer);
        self.run::<B>(device, optimizer, None)
    }

    fn release<B: ReleaseBackend>(self, device: Device<B>) -> Result<Measured> {
        let engine = &self.spec.engine;
        let optimizer = match engine.mode {
            Mode::Unarmed => mode::plain(engine.optimizer),
            Mode::Plain | Mode::Release | Mode::Ideal => mode::release(engine.optimizer),
        };
        let discard = (engine.mode == Mode::Ideal).then(mode::discard);
        self.run::<B>(device, optimizer, discard)
    }
}

impl Measure<'_> {
    /// `discard`: what takes the optimizer's place in the measured step.
    fn run<B: AutodiffBackend>(
        self,
        device: Device<B>,
        mut optimizer: Box<dyn Stepper<B>>,
        discard: Option<Box<dyn Stepper<B>>>,
    ) -> Result<Measured> {
        let spec = self.spec;
        let on_heap = spec.engine.backend.is_on_heap();
        let largest = 4 * self.config.largest_param() as u64;

        let meter = Meter::start();
        B::seed(&device, spec.seed);
        let mut model = self.config.init::<B>(&device);
        // Parameters are drawn when first looked at: look now, in the order of the model.
        let parameters = model.num_params();

        meter.reset_peak();
        let mut taken = Taken::default();
        let mut step_seconds = Vec::with_capacity(spec.steps);
        for step in 0..spec.steps {
            (model, taken) = self.step(model, optimizer.as_mut(), step, &meter, &device)?;
            step_seconds.push(taken.seconds);
        }

        let mut ideal = None;
        if let Some(mut discard) = discard {
            // The optimizer's state stays alive, as it would, and nobody steps.
            meter.reset_peak();
            (model, _) = self.step(model, discard.as_mut(), spec.steps, &meter, &device)?;
            ideal = on_heap.then(|| meter.peak() + largest);
        }
        let peak = meter.peak();
        let before = meter.live();
        drop(optimizer);
        let state = before - meter.live();

        Ok(Measured {
            mode: spec.engine.mode,
            backend: B::name(&device),
            preset: spec.preset,
            optimizer: spec.engine.optimizer.to_string(),
            checkpointing: spec.engine.checkpointing,
            batch_size: spec.batch_size,
            parameter_bytes: 4 * parameters as u64,
            optimizer_state_bytes: on_heap.then_some(state),
            largest_gradient_bytes: largest,
            activation_bytes: on_heap.then_some(taken.activations),
            peak_bytes: on_heap.then_some(peak),
            ideal_peak_bytes: ideal,
            step_seconds,
            final_loss: taken.loss,
            weights_digest: digest::weights(&model),
        })
    }
}

#[derive(Default)]
struct Taken {
    seconds: f64,
    activations: u64,
    loss: f64,
}

impl Measure<'_> {
    fn step<B: AutodiffBackend>(
        &self,
        mut model: Vit<B>,
        optimizer: &mut dyn Stepper<B>,
        step: usize,
        meter: &Meter,
        device: &Device<B>,
    ) -> Result<(Vit<B>, Taken)> {
        let spec = self.spec;
        let train = &self.data.train;
        let images = (0..spec.batch_size)
            .filter_map(|image| train.get((step * spec.batch_size + image) % train.len()))
            .collect();
        let before = meter.live();
        let batch: Batch<B> = self.data.batcher().batch(images, device);
        let loss = CrossEntropyLossConfig::new().init(device);

        let start = Instant::now();
        model = optimizer.arm(spec.learning_rate, model)?;
        let loss = loss.forward(model.forward(batch.images), batch.labels);
        let value = loss.clone().into_scalar().elem::<f64>();
        let activations = meter.live().saturating_sub(before);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(spec.learning_rate, model, grads)?;
        B::sync(device).context("the device failed")?;
        let seconds = start.elapsed().as_secs_f64();

        Ok((
            model,
            Taken {
                seconds,
                activations,
                loss: value,
            },
        ))
    }
}

/// The results for people.
pub fn table(runs: &[Measured]) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header([
        "mode",
        "parameters",
        "optimizer state",
        "largest gradient",
        "activations",
        "peak",
        "ideal peak",
        "step (median)",
        "final loss",
        "weights",
    ]);
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".into(), human);
    for run in runs {
        table.add_row([
            run.mode.to_string(),
            human(run.parameter_bytes),
            bytes(run.optimizer_state_bytes),
            human(run.largest_gradient_bytes),
            bytes(run.activation_bytes),
            bytes(run.peak_bytes),
            bytes(run.ideal_peak_bytes),
            format!("{:.3} s", step_time(run)),
            format!("{:.6}", run.final_loss),
            run.weights_digest.chars().take(12).collect(),
        ]);
    }
    let mut text = table.to_string();
    for mode in [Mode::Release, Mode::Unarmed] {
        if let Some(ratio) = paired_ratio(runs, mode) {
            text += &format!("\nstep time, {mode} over plain (median of paired runs): {ratio:.3}");
        }
    }
    text
}

/// The median over pairs of runs of the ratio of their step times; the modes ran in turn, so the
/// n-th of one and the n-th of plain saw the same machine.
pub fn paired_ratio(runs: &[Measured], over_plain: Mode) -> Option<f64> {
    let times = |mode| {
        runs.iter()
            .filter(move |run| run.mode == mode)
            .map(step_time)
    };
    let ratios: Vec<f64> = times(over_plain)
        .zip(times(Mode::Plain))
        .map(|(this, plain)| this / plain)
        .collect();
    (!ratios.is_empty()).then(|| median(&ratios))
}

/// The median over the steps after the first, which alone allocates the optimizer's state.
fn step_time(run: &Measured) -> f64 {
    match &run.step_seconds[..] {
        [] => f64::NAN,
        [only] => *only,
        [_, rest @ ..] => median(rest),
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_stands_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
