//! From the options to the settings of a run.

use super::args::TrainArgs;
use crate::config::{
    Checkpointing, DeviceKind, Engine, Mode, Operations, OptimizerKind, Preset, TrainConfig,
    WEIGHT_DECAY,
};
use crate::device;
use crate::model::Pool;
use anyhow::{Result, ensure};
use std::num::NonZeroUsize;
use vit_common::data::{Dataset, ImageSize, Source};
use vit_common::memory::Training;
use vit_common::settings::{agreed, given};

impl TrainArgs {
    /// The settings and the images of a run. Each setting is the option, else that of the resumed
    /// run, else the default.
    pub(super) fn resolve(&self, saved: Option<&TrainConfig>) -> Result<(TrainConfig, Dataset)> {
        let engine = self.engine(saved.map(|s| &s.engine))?;
        let preset = agreed("preset", self.preset, saved.map(|s| s.preset), Preset::Tiny)?;
        let number = |value: fn(&TrainConfig) -> usize| saved.map(value);
        let real = |value: fn(&TrainConfig) -> f64| saved.map(value);
        let learning_rate = agreed("lr", self.lr, real(|s| s.learning_rate), 2e-3)?;
        let dropout = agreed("dropout", self.dropout, real(|s| s.model.dropout), 0.1)?;
        let weight_decay = agreed(
            "weight-decay",
            self.weight_decay,
            real(|s| s.weight_decay),
            WEIGHT_DECAY,
        )?;
        ensure!(
            learning_rate > 0.0 && learning_rate <= 1.0,
            "--lr must be above 0 and at most 1, not {learning_rate}"
        );
        ensure!(
            (0.0..1.0).contains(&dropout),
            "--dropout must be at least 0 and below 1, not {dropout}"
        );
        ensure!(
            (0.0..1.0).contains(&weight_decay),
            "--weight-decay must be at least 0 and below 1, not {weight_decay}"
        );
        ensure!(
            self.weight_decay.is_none() || engine.optimizer.decays_weights(),
            "--weight-decay is for --optimizer adamw, adamw-one-pass, adamw-8bit and stable-adamw, \
             not for {}",
            engine.optimizer
        );

        // May be elsewhere by now, and each of several machines may have its own.
        let data_name = given(
            self.data.clone(),
            saved.map(|s| s.data.clone()),
            Source::Digits.to_string(),
        );
        let patch_size = agreed(
            "patch-size",
            self.patch_size.map(NonZeroUsize::get),
            number(|s| s.model.patch_size),
            preset.patch_size(),
        )?;
        let image_size = match number(|s| s.model.image_size) {
            Some(saved) => Some(agreed("image-size", self.image_size, Some(saved), saved)?),
            None => self.image_size,
        };
        let pool = agreed(
            "pool",
            self.pool,
            saved.map(|s| s.model.pool),
            Pool::ClassToken,
        )?;
        let epochs = agreed(
            "epochs",
            self.epochs.map(NonZeroUsize::get),
            number(|s| s.epochs),
            20,
        )?;
        let batch_size = agreed(
            "batch-size",
            self.batch_size.map(NonZeroUsize::get),
            number(|s| s.batch_size),
            32,
        )?;
        let seed = agreed("seed", self.seed, saved.map(|s| s.seed), 42)?;

        let data = Dataset::load(
            &data_name.parse()?,
            ImageSize {
                requested: image_size,
                patch_size,
            },
        )?;
        let data_digest = data.digest();
        ensure!(
            saved.is_none_or(|saved| saved.data_digest == data_digest),
            "the images of {data_name} are not those that the run in {} began with",
            self.artifact_dir.display()
        );
        let mut model = preset.config(data.size, data.channels, data.classes);
        model.patch_size = patch_size;
        model.dropout = dropout;
        model.pool = pool;
        let config = TrainConfig {
            preset,
            model,
            data: data_name,
            data_digest,
            engine,
            epochs,
            batch_size,
            learning_rate,
            weight_decay,
            seed,
        };
        config.iterations(data.train.len())?;
        self.ensure_memory(&config, &data)?;
        Ok((config, data))
    }

    /// Fails if a step takes more memory than there is. How much a GPU has is not known.
    fn ensure_memory(&self, config: &TrainConfig, data: &Dataset) -> Result<()> {
        let engine = &config.engine;
        if engine.device != DeviceKind::Cpu {
            return Ok(());
        }
        let training = Training {
            batch_size: config.batch_size,
            is_shared: self.data_parallel,
            blocks: match engine.checkpointing {
                Checkpointing::None => config.model.depth,
                _ => 1,
            },
            has_scores: engine.operations == Operations::Default,
        };
        training.ensure_fits(&config.model, data)
    }

    /// Device, mode, checkpointing, operations and optimizer, on a machine that has the device.
    fn engine(&self, saved: Option<&Engine>) -> Result<Engine> {
        let engine = Engine {
            device: given(self.device, saved.map(|e| e.device), DeviceKind::first()),
            mode: given(self.mode, saved.map(|e| e.mode), Mode::Release),
            checkpointing: given(
                self.checkpointing,
                saved.map(|e| e.checkpointing),
                Checkpointing::None,
            ),
            operations: given(
                self.operations,
                saved.map(|e| e.operations),
                Operations::Default,
            ),
            optimizer: agreed(
                "optimizer",
                self.optimizer,
                saved.map(|e| e.optimizer),
                OptimizerKind::AdamW,
            )?,
        };
        device::open(engine.device)?;
        Ok(engine)
    }
}
