//! From the options to the settings of a run.

use super::args::TrainArgs;
use crate::backend;
use crate::config::{
    BackendKind, Checkpointing, Engine, Mode, OptimizerKind, Preset, Regularization, TrainConfig,
    WEIGHT_DECAY,
};
use crate::data::{Dataset, ImageSize, Source};
use crate::model::Pool;
use anyhow::{Result, ensure};
use std::num::NonZeroUsize;
use vit_common::memory::Training;
use vit_common::settings::{agreed, agreed_if_any, given};

impl TrainArgs {
    /// The settings and the images of a run. Each setting is the option, else that of the resumed
    /// run, else the default.
    pub(super) fn resolve(&self, saved: Option<&TrainConfig>) -> Result<(TrainConfig, Dataset)> {
        let preset = agreed("preset", self.preset, saved.map(|s| s.preset), Preset::Tiny)?;
        let rate = |value: fn(&TrainConfig) -> f64| saved.map(value);
        let learning_rate = agreed("lr", self.lr, rate(|s| s.learning_rate), 2e-3)?;
        let dropout = agreed("dropout", self.dropout, rate(|s| s.model.dropout), 0.1)?;
        ensure!(
            learning_rate > 0.0 && learning_rate <= 1.0,
            "--lr must be above 0 and at most 1, not {learning_rate}"
        );
        ensure!(
            (0.0..1.0).contains(&dropout),
            "--dropout must be at least 0 and below 1, not {dropout}"
        );

        let number = |value: fn(&TrainConfig) -> usize| saved.map(value);
        // May be elsewhere by now, and each of several machines may have its own.
        let source = given(
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
        let grads_accumulation = agreed(
            "grads-accumulation",
            self.grads_accumulation.map(NonZeroUsize::get),
            number(|s| s.grads_accumulation),
            1,
        )?;
        let early_stopping = self.early_stopping(saved)?;
        let seed = agreed("seed", self.seed, saved.map(|s| s.seed), 42)?;
        let engine = self.engine(saved.map(|s| &s.engine))?;
        let regularization = self.regularization(&engine, saved.map(|s| s.regularization()))?;
        let data = Dataset::load(
            &source.parse()?,
            ImageSize {
                requested: image_size,
                patch_size,
            },
        )?;
        let data_digest = data.digest();
        ensure!(
            saved.is_none_or(|saved| saved.data_digest == data_digest),
            "the images of {source} are not those that the run in {} began with",
            self.artifact_dir.display()
        );
        let batches = data.train.len().div_ceil(batch_size);
        ensure!(
            grads_accumulation <= batches,
            "--grads-accumulation {grads_accumulation} is more than the {batches} batches of an \
             epoch: no step would ever be taken"
        );
        // Burn's cosine scheduler counts one more.
        let iterations = epochs.checked_mul(batches);
        ensure!(
            iterations.is_some_and(|iterations| iterations < usize::MAX),
            "--epochs {epochs} of {batches} batches each are more than can be counted"
        );
        let mut model = preset.config(data.size, data.channels, data.classes);
        model.patch_size = patch_size;
        model.dropout = dropout;
        model.pool = pool;
        let config = TrainConfig {
            preset,
            model,
            data: source,
            data_digest,
            engine,
            epochs,
            batch_size,
            grads_accumulation,
            early_stopping,
            learning_rate,
            regularization: Some(regularization),
            seed,
        };
        self.ensure_memory(&config, &data)?;
        Ok((config, data))
    }

    /// Fails if a step takes more memory than there is. How much a GPU has is not known.
    fn ensure_memory(&self, config: &TrainConfig, data: &Dataset) -> Result<()> {
        if !config.engine.backend.is_on_heap() {
            return Ok(());
        }
        let training = Training {
            batch_size: config.batch_size,
            is_shared: self.data_parallel,
            blocks: match config.engine.checkpointing {
                Checkpointing::None => config.model.depth,
                _ => 1,
            },
            has_scores: true,
        };
        training.ensure_fits(&config.model, data)
    }

    /// The epochs of `--early-stopping`, which must not change when a run is resumed.
    fn early_stopping(&self, saved: Option<&TrainConfig>) -> Result<Option<usize>> {
        agreed_if_any(
            "early-stopping",
            self.early_stopping.map(NonZeroUsize::get),
            saved.map(|s| s.early_stopping),
        )
    }

    /// Weight decay and clipping, which must not change when a run is resumed.
    fn regularization(
        &self,
        engine: &Engine,
        saved: Option<Regularization>,
    ) -> Result<Regularization> {
        if let Some(weight_decay) = self.weight_decay {
            ensure!(
                engine.optimizer.decays_weights(),
                "--weight-decay is for --optimizer adamw, adamw-one-pass and adamw-8bit, not for {}",
                engine.optimizer
            );
            ensure!(
                (0.0..1.0).contains(&weight_decay),
                "--weight-decay must be at least 0 and below 1, not {weight_decay}"
            );
        }
        if let Some(max_norm) = self.clip_grad_norm {
            ensure!(
                max_norm > 0.0 && max_norm.is_finite(),
                "--clip-grad-norm must be above 0, not {max_norm}"
            );
        }
        let regularization = Regularization {
            weight_decay: match saved {
                None => self.weight_decay,
                Some(saved) => {
                    let before = saved.weight_decay.unwrap_or(WEIGHT_DECAY);
                    agreed("weight-decay", self.weight_decay, Some(before), before)?;
                    saved.weight_decay
                }
            },
            no_decay_on_norms: match saved {
                None => self.no_decay_on_norms,
                Some(saved) => {
                    ensure!(
                        saved.no_decay_on_norms || !self.no_decay_on_norms,
                        "the run to resume has no --no-decay-on-norms"
                    );
                    saved.no_decay_on_norms
                }
            },
            clip_grad_norm: agreed_if_any(
                "clip-grad-norm",
                self.clip_grad_norm,
                saved.map(|saved| saved.clip_grad_norm),
            )?,
        };
        ensure!(
            !regularization.no_decay_on_norms || engine.optimizer.decays_weights(),
            "--no-decay-on-norms is for --optimizer adamw, adamw-one-pass and adamw-8bit, not for {}",
            engine.optimizer
        );
        ensure!(
            engine.mode == Mode::Release
                || (regularization.clip_grad_norm.is_none() && !regularization.no_decay_on_norms),
            "--clip-grad-norm and --no-decay-on-norms need gradient release, as Burn 0.21 has neither: use \
             --mode release"
        );
        Ok(regularization)
    }

    /// Backend, mode, checkpointing and optimizer, on a machine that has the backend.
    fn engine(&self, saved: Option<&Engine>) -> Result<Engine> {
        let optimizer = agreed(
            "optimizer",
            self.optimizer,
            saved.map(|e| e.optimizer),
            OptimizerKind::AdamW,
        )?;
        let checkpointing = given(
            self.checkpointing,
            saved.map(|e| e.checkpointing),
            Checkpointing::None,
        );
        let engine = Engine {
            backend: given(self.backend, saved.map(|e| e.backend), BackendKind::first()),
            fusion: given(
                match (self.fusion, self.no_fusion) {
                    (true, _) => Some(true),
                    (_, true) => Some(false),
                    _ => None,
                },
                saved.map(|e| e.fusion),
                true,
            ),
            mode: given(self.mode, saved.map(|e| e.mode), Mode::Release),
            checkpointing,
            activation_budget: self
                .activation_budget(checkpointing, saved.and_then(|e| e.activation_budget))?,
            optimizer,
        };
        ensure!(
            engine.mode == Mode::Release
                || matches!(checkpointing, Checkpointing::None | Checkpointing::Balanced),
            "--checkpointing {checkpointing} needs gradient release: use --mode release, or \
             --checkpointing balanced with --mode {}",
            engine.mode
        );
        ensure!(
            !optimizer.is_8_bit() || engine.backend.has_8_bit_moments(),
            "--optimizer {optimizer} is not for --backend {}, which has no kernels for moments in 8 bits: use \
             --backend flex",
            engine.backend
        );
        backend::require(engine.backend)?;
        ensure!(
            !(self.no_fusion || self.fusion) || !engine.backend.is_on_heap(),
            "--no-fusion and --fusion are for a GPU; {} never fuses",
            engine.backend
        );
        Ok(engine)
    }

    /// The budget of automatic checkpointing. A resumed run that recomputes in another way has
    /// none.
    fn activation_budget(
        &self,
        checkpointing: Checkpointing,
        saved: Option<u64>,
    ) -> Result<Option<u64>> {
        if checkpointing == Checkpointing::Automatic {
            let budget = self.activation_budget.map(|size| size.as_u64()).or(saved);
            return Ok(budget.filter(|bytes| *bytes > 0));
        }
        ensure!(
            self.activation_budget.is_none(),
            "--activation-budget is for --checkpointing automatic, not for {checkpointing}"
        );
        Ok(None)
    }
}
