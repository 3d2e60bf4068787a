//! Weights of a model in 16 bits and its optimizer's record, from and to f32.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleMapper, Param, ParamGroup};
use burn::optim::{Optimizer, OptimizerRecord, join_path};
use burn::store::RecordError;
use burn::tensor::{DType, Tensor, TensorData};
use burn_pack::{Reader, Scalar, Writer};

use super::bf16::{Bf16Weights, LOW, OPTIMIZER, check_low_of, name_of_low};
use super::rounding::Rounding;
use crate::mixed_precision::synchronize;
use crate::optimizer::with_value;
use crate::path::{Path, PathMapper, WithPaths, path_text};

impl<O: Optimizer, R: Rounding> Bf16Weights<O, R> {
    /// The model with its weights in f32: the master weights, for a checkpoint or for inference.
    /// `record` is what the optimizer's `to_record` gives. Parameters in other types than bf16 and
    /// f16 stay as they are.
    ///
    /// To train on in 16 bits, take [`weights_from_f32`](Self::weights_from_f32) with that record:
    /// [`MixedPrecision`](crate::MixedPrecision) rounds ties the other way, and the lower bits in the
    /// record would belong to other weights.
    ///
    /// ```
    /// use burn::module::ParamGroup;
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::{AdamWConfig, OptimizerRecord};
    /// use burn::tensor::{DType, Device};
    /// use burn_lean::optim::{Bf16Weights, InOnePass, MasterWeights24};
    ///
    /// let model: Linear = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
    /// let five_bytes = Bf16Weights::new(AdamWConfig::new().in_one_pass(), MasterWeights24 { seed: 7 });
    ///
    /// // From f32: the model in bf16, and the bits beside it in a record.
    /// let (all, record) = (ParamGroup::all(), OptimizerRecord::default());
    /// let (model, record) = five_bytes.weights_from_f32(model, &all, DType::BF16, record)?;
    /// let optim = five_bytes.clone().init().load_record(record);
    /// // ... training ...
    /// let model = five_bytes.weights_to_f32(model, optim.to_record())?;
    /// assert_eq!(model.weight.val().dtype(), DType::F32);
    /// # Ok::<(), burn::store::RecordError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the record cannot be read.
    ///
    /// # Panics
    ///
    /// If the record is that of another model, of another rounding or of a model in the other type.
    pub fn weights_to_f32<M: Module>(
        &self,
        model: M,
        record: OptimizerRecord,
    ) -> Result<M, RecordError> {
        synchronize(&model);
        let mut mapper = ToF32 {
            rounding: &self.rounding,
            low: Entries::read(record)?.low,
            found: BTreeSet::new(),
        };
        let model = model.map(&mut mapper);
        let missing = mapper.low.len() - mapper.found.len();
        assert!(
            missing == 0,
            "the record has lower bits of {missing} weights that no parameter in this model has: it is \
             that of another model, or of more than this one; give it all modules that the optimizer \
             has stepped, as a tuple, and merge adapters (`materialize`) after it"
        );
        Ok(model)
    }

    /// The reverse: rounds the parameters of a group that are in f32 to bf16 or f16, and puts the
    /// bits that the rounding keeps into the record. The record may be empty, or that of a run whose
    /// [`weights_to_f32`](Self::weights_to_f32) this was: then it goes on with the same bits. The states
    /// of a run in f32 with the same optimizer stay.
    ///
    /// # Errors
    ///
    /// If the record cannot be read.
    ///
    /// # Panics
    ///
    /// If this rounding does not support the type.
    pub fn weights_from_f32<M: Module>(
        &self,
        model: M,
        group: &ParamGroup,
        dtype: DType,
        record: OptimizerRecord,
    ) -> Result<(M, OptimizerRecord), RecordError> {
        synchronize(&model);
        assert!(
            self.rounding.rounds_to(dtype),
            "weights are rounded to BF16, or to F16 with `MasterWeights24`, and not to {dtype:?}"
        );
        let mut mapper = FromF32 {
            rounding: &self.rounding,
            group,
            dtype,
            entries: Entries::read(record)?,
        };
        let model = model.map(&mut WithPaths::new(&mut mapper));
        Ok((model, mapper.entries.into_record()?))
    }
}

/// By the id of the parameter: the type of the weight, and its lower bits.
type LowBitsById = BTreeMap<u64, (DType, TensorData)>;

/// The lower bits of weights, and the rest of a record.
struct Entries {
    low: LowBitsById,
    others: Vec<burn_pack::Tensor>,
    scalars: BTreeMap<String, Scalar>,
    paths: BTreeMap<String, String>,
}

impl Entries {
    fn read(record: OptimizerRecord) -> Result<Self, RecordError> {
        let reader = Reader::from_bytes(record.into_bytes()?)?;
        let mut entries = Self {
            low: BTreeMap::new(),
            others: Vec::new(),
            scalars: reader.scalars().clone(),
            paths: reader.metadata().clone(),
        };
        for tensor in reader.into_tensors()? {
            let id = tensor.param_id;
            let is_low = |id: u64, name| tensor.name == join_path(&id.to_string(), name);
            let low_of = id.and_then(|id| {
                let of_type = LOW.into_iter().find(|(_, name)| is_low(id, name));
                of_type.map(|(low_of, _)| (id, low_of))
            });
            match low_of {
                Some((id, low_of)) => {
                    let (_, dtype, shape, _, bytes) = tensor.into_parts()?;
                    let data = TensorData::from_bytes(bytes, shape, dtype);
                    entries.low.insert(id, (low_of, data));
                }
                None => entries.others.push(tensor),
            }
        }
        Ok(entries)
    }

    /// Makes the state of an optimizer of weights in f32 one of [`Bf16Weights`].
    fn nest(&mut self, id: u64) {
        let id_text = id.to_string();
        let of = |field: &str| join_path(&id_text, field);
        let nested = join_path(&of(OPTIMIZER), "");
        let is_nested = |name: &String| name.starts_with(&nested);
        let of_this = |tensor: &&mut burn_pack::Tensor| tensor.param_id == Some(id);
        let mut tensors: Vec<_> = self.others.iter_mut().filter(of_this).collect();
        // What accumulates in its moments has an optimizer, too, and no time of its own.
        let has_optimizer = tensors.iter().any(|tensor| is_nested(&tensor.name))
            || self.scalars.keys().any(is_nested);
        let is_ours = has_optimizer && self.scalars.contains_key(&of("time"));
        if is_ours {
            return;
        }
        let (own, rank) = (of(""), of("__rank"));
        let moved = |name: &str| Some(format!("{nested}{}", name.strip_prefix(&own)?));
        for tensor in &mut tensors {
            if let Some(name) = moved(&tensor.name) {
                tensor.name = name;
            }
        }
        let scalars = std::mem::take(&mut self.scalars).into_iter();
        self.scalars = scalars
            .map(|(name, scalar)| {
                let moved = moved(&name).filter(|_| name != rank);
                (moved.unwrap_or(name), scalar)
            })
            .collect();
    }

    fn into_record(self) -> Result<OptimizerRecord, RecordError> {
        let mut tensors = self.others;
        for (id, (low_of, data)) in self.low {
            let (bytes, shape, dtype) = data.into_parts();
            let name = join_path(&id.to_string(), name_of_low(low_of));
            tensors.push(burn_pack::Tensor::new(name, dtype, shape, Some(id), bytes));
        }
        let mut writer = Writer::new(tensors);
        for (name, scalar) in self.scalars {
            writer = writer.with_scalar(&name, scalar);
        }
        for (name, path) in self.paths {
            writer = writer.with_metadata(&name, &path);
        }
        OptimizerRecord::from_bytes(writer.into_bytes()?)
    }
}

struct ToF32<'a, R> {
    rounding: &'a R,
    low: LowBitsById,
    /// Ids that have lower bits. Several fields may have the same one.
    found: BTreeSet<u64>,
}

impl<R: Rounding> ModuleMapper for ToF32<'_, R> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id.val();
        let low = self.low.get(&id).cloned();
        if low.is_some() {
            self.found.insert(id);
        }
        with_value(param, |weight| match weight.dtype() {
            DType::BF16 | DType::F16 => {
                let device = weight.device();
                let low = low.map(|(low_of, low)| {
                    if let Err(reason) = check_low_of(weight.dtype(), low_of) {
                        panic!("{reason}");
                    }
                    Tensor::from_data(low, (&device, DType::I32))
                });
                self.rounding.widen(weight, low)
            }
            _ => weight,
        })
    }
}

struct FromF32<'a, R> {
    rounding: &'a R,
    group: &'a ParamGroup,
    dtype: DType,
    entries: Entries,
}

impl<R: Rounding> PathMapper for FromF32<'_, R> {
    fn map<const D: usize>(&mut self, path: &Path, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        // No optimizer steps running statistics, so none would renew their bits.
        let is_running = path.last().is_some_and(|(name, container)| {
            container == "Struct:BatchNorm" && name.starts_with("running_")
        });
        let path = path_text(path);
        // In this order: a parameter is drawn when it is first read.
        if !self.group.matches(&id, Some(&path)) || param.val().dtype() != DType::F32 {
            return param;
        }
        let entries = &mut self.entries;
        with_value(param, |weight| {
            // What 24 bits hold already has nothing to be rounded, whatever the noise.
            let (weight, low) = self.rounding.round(weight, self.dtype, 0);
            // Those of before, which may be of another rounding.
            let was_split = entries.low.remove(&id.val()).is_some();
            if let Some(low) = low.filter(|_| !is_running) {
                if !was_split {
                    entries.nest(id.val());
                }
                entries.low.insert(id.val(), (self.dtype, low.into_data()));
                // The state of a parameter that has taken no step, as Burn's record has it.
                let name = id.val().to_string();
                let scalar = |field| join_path(&name, field);
                let scalars = &mut entries.scalars;
                scalars.entry(scalar("time")).or_insert(0usize.into());
                scalars.entry(scalar("__rank")).or_insert(D.into());
                entries.paths.entry(name).or_insert(path);
            }
            weight
        })
    }
}
