//! A model and its optimizer: from the Hub's files or a checkpoint, to a checkpoint and the Hub's files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use burn::module::{Lora, Module, ModuleMapper, Param, ParamGroup, ParamId};
use burn::optim::{AdamWConfig, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_lean::operations::Nf4;
use burn_lean::optim::{InFiveBytes, InOnePass, InScratch, Lean};
use burn_lean::safetensors::{Weights, read_all, save, save_master_weights};
use burn_lean::{
    MixedPrecision, ReleaseOptimizer, Scratch, WithGradientRelease, no_decay, save_adapters,
};
use lean_run_folder::{CannotWrite, Checkpoints};

use crate::config::ModelConfig;
use crate::model::Decoder;
use crate::settings::{How, Settings};

/// What is in a checkpoint.
pub const PARTS: [&str; 2] = [WEIGHTS, STATES];
const WEIGHTS: &str = "weights.bin";
const STATES: &str = "states.bpk";

/// A model in training.
#[derive(Debug)]
pub struct Training {
    /// The model, which a step takes and gives back.
    pub model: Decoder,
    /// Its optimizer.
    pub optim: ReleaseOptimizer,
}

impl Training {
    /// Reads the weights of the model; or of a checkpoint, by its steps.
    ///
    /// # Errors
    ///
    /// Weights do not fit the model, or a checkpoint cannot be read.
    pub fn open(
        settings: &Settings,
        config: &ModelConfig,
        mut weights: Weights,
        from: Option<(&Checkpoints, usize)>,
        device: &Device,
    ) -> Result<Self> {
        let is_full = settings.how == How::FiveBytes;
        let scratch = scratch(settings)?;
        if let Some((checkpoints, step)) = from.filter(|_| is_full) {
            weights = Weights::open(checkpoints.file(WEIGHTS, step))?;
        }
        // All bits of f32 and f16 are for the optimizer.
        let is_wide = weights.tensors().any(|(_, dtype, _)| dtype != DType::BF16);
        let is_rounded = is_full && is_wide && from.is_none();
        if !is_rounded {
            weights = weights.with_precision(MixedPrecision::bf16());
        }
        let model = config.init(settings.context, device);
        let lora = lora(settings.rank);
        let nf4 = match &scratch {
            Some(scratch) => Nf4::new().in_scratch(scratch),
            None => Nf4::new(),
        };
        let nf4 = nf4.with_group(ParamGroup::from_predicate("layers"));
        let nf4 = nf4.with_lora(lora.clone());
        let model = match settings.how {
            How::FiveBytes => weights.load(model, str::to_owned)?,
            How::Lora => weights.load(model, str::to_owned)?.apply_lora(lora),
            How::Nf4 if config.is_packed => weights.load_nf4(nf4, model, str::to_owned)?,
            How::Nf4 => nf4.pack(weights.load(model, str::to_owned)?)?,
        };
        let mut model = model.map(&mut Numbered(0));

        let adamw = |decay| {
            let adamw = AdamWConfig::new().with_epsilon(1e-8);
            adamw.with_weight_decay(decay)
        };
        let mut optim = match settings.how {
            How::FiveBytes => {
                let five_bytes = |decay| adamw(decay).in_five_bytes(settings.seed);
                let (plain, without) = (five_bytes(settings.decay), five_bytes(0.0));
                match &scratch {
                    None => {
                        let optim = plain.init().with_gradient_release();
                        optim.with_group(no_decay(&model), without, None)
                    }
                    Some(scratch) => {
                        let optim = plain.in_scratch(scratch).init().with_gradient_release();
                        optim.with_group(no_decay(&model), without.in_scratch(scratch), None)
                    }
                }
            }
            How::Lora | How::Nf4 => {
                let adamw = adamw(settings.decay).in_one_pass();
                adamw.init().with_gradient_release()
            }
        };
        if is_rounded {
            let group = MixedPrecision::bf16().params(&model)?;
            let rounded = optim.round_weights(model, &group, DType::BF16);
            model = rounded.map_err(|refused| refused.into_parts().1)?;
        }
        if let Some((checkpoints, step)) = from {
            if !is_full {
                let adapters = ModuleRecord::load(checkpoints.file(WEIGHTS, step))?;
                model = model.try_load_record(adapters.allow_partial(true))?;
            }
            let states = OptimizerRecord::load(checkpoints.file(STATES, step))?;
            optim = optim.load_record(states);
        }
        match &scratch {
            None => read_all(&model),
            Some(scratch) => {
                // Three bytes a weight beside it, of which a step makes the tensors.
                let of_states = if is_full {
                    model.num_params() * 31 / 10
                } else {
                    0
                };
                scratch.reserve(of_states as u64)?;
                model = scratch
                    .place(model)
                    .map_err(|refused| refused.into_parts().1)?;
            }
        }
        Ok(Self { model, optim })
    }

    /// Writes a checkpoint, which is complete or not there.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub fn save(&self, how: How, checkpoints: &Checkpoints, step: usize) -> Result<()> {
        let saved = checkpoints.save(step, |part, file| -> Result<()> {
            let cannot = |error: &dyn std::fmt::Display| CannotWrite::to(file, error);
            match (part, how) {
                (STATES, _) => self
                    .optim
                    .save_states(&self.model, file)
                    .map_err(|it| cannot(&it))?,
                (_, How::FiveBytes) => {
                    let saved = save(&self.model, file, str::to_owned, |_, dtype| dtype);
                    saved.map_err(|it| cannot(&it))?;
                }
                (_, How::Lora | How::Nf4) => {
                    let adapters = ParamGroup::from_predicate(".lora.");
                    let record = self.model.clone().into_record_group(adapters);
                    record.save(file).map_err(|it| cannot(&it))?;
                }
            }
            Ok(())
        });
        saved.with_context(|| format!("the checkpoint of step {step}"))
    }

    /// Writes what `transformers` or `peft` loads, each tensor in the type that it has in the files of
    /// the model.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub fn give(
        &self,
        settings: &Settings,
        types: &BTreeMap<String, DType>,
        folder: &Path,
    ) -> Result<()> {
        if settings.how != How::FiveBytes {
            // Modules have the names of Python's.
            let lora = lora(settings.rank);
            let saved = save_adapters(&self.model, &lora, folder, str::to_owned);
            return saved.map_err(|error| CannotWrite::to(folder, error).into());
        }
        let file = folder.join("model.safetensors");
        let types = |name: &str, _| types[name];
        let saved = save_master_weights(&self.model, &self.optim, &file, str::to_owned, types);
        saved.map_err(|error| CannotWrite::to(&file, error))?;
        copy_rest(&settings.model, folder)
    }
}

/// The file for weights and states, if there is to be one.
fn scratch(settings: &Settings) -> Result<Option<Scratch>> {
    let Some(folder) = &settings.scratch else {
        return Ok(None);
    };
    Ok(Some(
        Scratch::create(folder)?.with_memory(settings.memory << 20)?,
    ))
}

/// Adapters of all linear layers but the head.
fn lora(rank: usize) -> Lora {
    Lora::new(rank, 2.0 * rank as f64)
        .set_param_group(ParamGroup::from_predicate("layers"))
        .set_dtype(FloatDType::F32)
}

/// Numbers parameters, by which another process finds their states.
struct Numbered(u64);

impl ModuleMapper for Numbered {
    fn map_float<const D: usize>(&mut self, mut param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += 1;
        param.id = ParamId::from(self.0);
        param
    }
}

/// Copies what belongs to a model beside its weights.
fn copy_rest(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let (path, name) = entry.map(|it| (it.path(), it.file_name()))?;
        let is_kept = ["json", "jinja"]
            .iter()
            .any(|it| path.extension() == Some(it.as_ref()));
        if is_kept && !name.to_string_lossy().contains("safetensors") && path.is_file() {
            let to = to.join(name);
            fs::copy(&path, &to).map_err(|error| CannotWrite::to(&to, error))?;
        }
    }
    Ok(())
}
