//! Tensors in a file: a model that is larger than memory.

mod error;
mod file;
mod pager;
mod space;

use std::path::Path;
use std::sync::Arc;

use burn::backend::{
    BackendTensor, BackendTypes, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, Flex,
    TensorMetadata,
};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, DType, Device, Int, Shape, Tensor, TensorData};

use crate::backend::plain;
use crate::error::Refused;
use crate::tape::{constant, guard, is_tracked, leaf, node, node_of, register};
use crate::tensors::{MapTensor, Tensors};
pub use error::ScratchError;
use file::ScratchFile;
use pager::{Pager, Use, pagers};
use space::{PAGE, Place, whole_pages};

/// A file for tensors, in place of memory.
///
/// Tensors in it are ordinary tensors of Flex: the system reads what a step needs, and writes what
/// it has changed. So weights and optimizer states may be larger than memory. The file has no name.
/// The file is gone when its last tensor is dropped, or when the process ends, even if it is
/// killed.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamWConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_lean::optim::{InOnePass, InScratch};
/// use burn_lean::{Scratch, WithGradientRelease, checkpoint};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir_in(".")?;
/// let device = Device::flex().autodiff();
/// let scratch = Scratch::create(&folder)?.with_memory(4 << 30)?;
/// let layers: Vec<Linear> = (0..4).map(|_| LinearConfig::new(64, 64).init(&device)).collect();
/// let mut layers = scratch.place(layers)?;
/// let optim = AdamWConfig::new().in_one_pass().in_scratch(&scratch);
/// let mut optim = optim.init().with_gradient_release();
///
/// let mut x = Tensor::<2>::ones([8, 64], &device);
/// for layer in &layers {
///     x = checkpoint(layer, x, |layer, x| layer.forward(x));
/// }
/// layers = optim.backward(1e-3, x.square().mean(), layers);
/// # let _ = layers;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Scratch {
    file: Arc<ScratchFile>,
    pager: Option<Arc<Pager>>,
}

impl Scratch {
    /// Makes an empty file in a folder. It has no name there.
    ///
    /// # Errors
    ///
    /// [`Folder`](ScratchError::Folder), [`InMemory`](ScratchError::InMemory).
    pub fn create(folder: impl AsRef<Path>) -> Result<Self, ScratchError> {
        let file = Arc::new(ScratchFile::create(folder.as_ref())?);
        Ok(Self { file, pager: None })
    }

    /// Keeps about `bytes` of the file in memory. It reads ahead what the next layers need, and
    /// frees the rest. Without this call, the system decides what stays in memory.
    ///
    /// The order is the order of the last step, as scopes ([`checkpoint`](crate::checkpoint)) and
    /// optimizer steps report it. If the system limits the memory of the process, this part of the
    /// file counts too.
    ///
    /// # Errors
    ///
    /// [`Thread`](ScratchError::Thread).
    pub fn with_memory(self, bytes: u64) -> Result<Self, ScratchError> {
        let limit = usize::try_from(bytes).unwrap_or(usize::MAX);
        let pager = Pager::start(Arc::clone(&self.file), limit);
        let pager = pager.map_err(|error| ScratchError::Thread(Arc::new(error)))?;
        Ok(Self {
            pager: Some(pager),
            ..self
        })
    }

    /// Takes space on the disk before it is needed. Without this call, the file grows in a step,
    /// and a full disk panics there.
    ///
    /// # Errors
    ///
    /// [`Space`](ScratchError::Space): the file is as it was.
    pub fn reserve(&self, bytes: u64) -> Result<(), ScratchError> {
        self.file.grow(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// The bytes of tensors in the file, and those that it takes on the disk.
    pub fn usage(&self) -> ScratchUsage {
        ScratchUsage {
            in_use: self.file.in_use() as u64,
            reserved: self.file.len() as u64,
        }
    }

    /// Puts the parameters of a model into the file, one after the other. A parameter that nobody
    /// has read yet is drawn, so the model is never in memory as a whole. Parameters that are
    /// smaller than a page (4096 bytes) stay in memory. Parameters that are in the file already
    /// stay there.
    ///
    /// The model can be trained, saved, cloned and dropped as before. A cast or a loaded record
    /// makes new tensors in memory: place the model again, or let the
    /// [optimizer](crate::optim::InScratch) do it in its next step.
    ///
    /// # Errors
    ///
    /// With the model: [`Space`](ScratchError::Space), or [`NotOnFlex`](ScratchError::NotOnFlex). Nothing
    /// has moved, but where parameters are drawn in f32 and the disk is full by then: the model is whole,
    /// and a part of it is in the file.
    pub fn place<M: Module>(&self, model: M) -> Result<M, Refused<M, (), ScratchError>> {
        let mut needed = Needed {
            scratch: self,
            bytes: 0,
            refused: None,
        };
        model.visit(&mut needed);
        let grown = match needed.refused {
            Some(error) => Err(error),
            None => self.reserve(needed.bytes as u64),
        };
        if let Err(error) = grown {
            return Err(Refused::new(model, error));
        }
        let mut placing = Placing {
            scratch: self,
            failed: None,
        };
        let model = model.map(&mut placing);
        match placing.failed {
            Some(error) => Err(Refused::new(model, error)),
            None => Ok(model),
        }
    }

    /// Moves the floats, ints and bools of a scope's input into the file, where they wait for backward.
    ///
    /// ```
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::tensor::{Device, Tensor};
    /// # use burn_lean::{Scratch, checkpoint};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir_in(".")?;
    /// # let device = Device::flex().autodiff();
    /// # let layer: Linear = LinearConfig::new(64, 64).init(&device);
    /// let scratch = Scratch::create(&folder)?;
    /// let x = Tensor::<2>::ones([512, 64], &device);
    /// let y = checkpoint(&layer, scratch.keep(x)?, |layer, x| layer.forward(x));
    /// # let _ = y;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Space`](ScratchError::Space), or [`NotOnFlex`](ScratchError::NotOnFlex).
    pub fn keep<T: Tensors>(&self, input: T) -> Result<T, ScratchError> {
        self.place_each(|place| input.map(place))
    }

    /// Puts each tensor into the file to which `map` applies what it is given.
    pub(crate) fn place_each<T>(
        &self,
        map: impl FnOnce(&mut MapTensor<'_>) -> T,
    ) -> Result<T, ScratchError> {
        let mut failed = None;
        let placed = map(&mut MapTensor(
            &mut |tensor| match self.placed(inner(&tensor)) {
                Ok(value) => kept(tensor, value),
                Err(error) => {
                    failed.get_or_insert(error);
                    tensor
                }
            },
        ));
        match failed {
            None => Ok(placed),
            Some(error) => Err(error),
        }
    }

    /// A tensor without autodiff in the file: the same one if it was there, or is small.
    pub(crate) fn placed(&self, tensor: DispatchTensor) -> Result<DispatchTensor, ScratchError> {
        let found = on_flex(&tensor)?;
        if self.stays(found.bytes()) {
            return Ok(tensor);
        }
        let found = found.to_contiguous();
        let (shape, dtype) = (found.shape(), found.dtype());
        let length = shape.num_elements() * dtype.size();
        let bytes = self.file.buffer(&found.bytes()[..length])?;
        drop(found);
        let placed = FlexTensor::from_data(TensorData::from_bytes(bytes, shape, dtype));
        let placed = match tensor.kind {
            DispatchTensorKind::Flex(BackendTensor::Int(_)) => BackendTensor::Int(placed),
            DispatchTensorKind::Flex(BackendTensor::Bool(_)) => BackendTensor::Bool(placed),
            _ => BackendTensor::Float(placed),
        };
        Ok(DispatchTensor {
            kind: DispatchTensorKind::Flex(placed),
            autodiff: tensor.autodiff,
        })
    }

    /// Whether bytes are in the file, or too few for it.
    fn stays(&self, bytes: &[u8]) -> bool {
        bytes.len() < PAGE || self.file.place_of(bytes).is_some()
    }

    /// Puts a state into the file that exists as data.
    pub(crate) fn stored(&self, data: TensorData) -> Result<TensorData, ScratchError> {
        if self.stays(data.as_bytes()) {
            return Ok(data);
        }
        let bytes = self.file.buffer(data.as_bytes())?;
        let (_, shape, dtype) = data.into_parts();
        Ok(TensorData::from_bytes(bytes, shape, dtype))
    }

    /// Tells who reads ahead that a step is about to use a tensor.
    pub(crate) fn uses(&self, tensor: &DispatchTensor) {
        self.tell(tensor, Use::Begins);
    }

    /// Tells who reads ahead that a step has changed a tensor.
    pub(crate) fn changed(&self, tensor: &DispatchTensor) {
        self.tell(tensor, Use::Changed);
    }

    fn tell(&self, tensor: &DispatchTensor, used: fn(Place) -> Use) {
        if let Some(pager) = &self.pager {
            pager.tell(place_in(&self.file, tensor).map(used));
        }
    }
}

/// The bytes of tensors in a [`Scratch`] file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchUsage {
    /// Bytes of tensors in the file, in whole pages of 4096 bytes.
    pub in_use: u64,
    /// Bytes that the file takes on the disk.
    pub reserved: u64,
}

type FlexTensor = <Flex as BackendTypes>::FloatTensorPrimitive;

/// The primitive of a tensor without autodiff.
fn on_flex(tensor: &DispatchTensor) -> Result<FlexTensor, ScratchError> {
    use BackendTensor as Of;
    match &tensor.kind {
        DispatchTensorKind::Flex(Of::Float(found) | Of::Int(found) | Of::Bool(found)) => {
            Ok(found.clone())
        }
        DispatchTensorKind::Flex(_) => Err(ScratchError::NotOnFlex {
            what: format!("a tensor {:?} that Burn has quantized", tensor.shape()),
        }),
        #[allow(unreachable_patterns)] // With one backend there is no other.
        _ => Err(ScratchError::NotOnFlex {
            what: format!("a tensor {:?} on another device", tensor.shape()),
        }),
    }
}

fn place_in(file: &ScratchFile, tensor: &DispatchTensor) -> Option<Place> {
    on_flex(tensor)
        .ok()
        .and_then(|found| file.place_of(found.bytes()))
}

/// A tensor of any kind without autodiff.
fn inner(tensor: &DispatchTensor) -> DispatchTensor {
    // Any rank will do.
    match tensor.dtype() {
        dtype if dtype.is_float() => plain(tensor.clone()),
        DType::Bool(_) => {
            let tensor = Tensor::<1, Bool>::from_dispatch(tensor.clone());
            tensor.inner().into_dispatch()
        }
        _ => {
            let tensor = Tensor::<1, Int>::from_dispatch(tensor.clone());
            tensor.inner().into_dispatch()
        }
    }
}

/// A tensor of ints or bools, which have no gradient, with the autodiff of another.
fn like(tensor: &DispatchTensor, value: DispatchTensor) -> DispatchTensor {
    let kind = match tensor.kind {
        DispatchTensorKind::Autodiff(_) => DispatchTensorKind::Autodiff(Box::new(value.kind)),
        _ => value.kind,
    };
    DispatchTensor {
        kind,
        autodiff: tensor.autodiff,
    }
}

/// The tensor with this value in place of its own, and with the same gradient.
fn kept(tensor: DispatchTensor, value: DispatchTensor) -> DispatchTensor {
    let autodiff = tensor.autodiff;
    if !tensor.dtype().is_float() {
        return like(&tensor, value);
    }
    if autodiff == DispatchAutodiffContext::Disabled {
        return value;
    }
    if !is_tracked(&tensor) {
        return constant(value, autodiff);
    }
    let id = node_of(&tensor).expect("a tensor of a tape has a node");
    node(value, [guard(&tensor)], autodiff, move |mut reached| {
        let grad = reached.grad();
        register(reached.grads, id, grad);
    })
}

/// Tells those who read ahead that a scope is about to use a module.
pub(crate) fn scope_uses<M: Module>(module: &M) {
    struct Places<'a> {
        file: &'a ScratchFile,
        found: Vec<Place>,
    }
    impl ModuleVisitor for Places<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_initialized() {
                let tensor = param.base().inner().into_dispatch();
                self.found.extend(place_in(self.file, &tensor));
            }
        }

        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            if param.is_initialized() {
                let tensor = param.base().inner().into_dispatch();
                self.found.extend(place_in(self.file, &tensor));
            }
        }
    }
    for pager in pagers() {
        let mut places = Places {
            file: &pager.file,
            found: Vec::new(),
        };
        module.visit(&mut places);
        pager.tell_of_scope(places.found);
    }
}

/// Counts what a model needs in the file, and looks for what cannot be there.
struct Needed<'a> {
    scratch: &'a Scratch,
    bytes: usize,
    refused: Option<ScratchError>,
}

impl Needed<'_> {
    fn add_initialized(&mut self, tensor: &DispatchTensor) {
        match on_flex(tensor) {
            Ok(found) if self.scratch.stays(found.bytes()) => {}
            Ok(_) => self.add(tensor.shape().num_elements() * tensor.dtype().size()),
            Err(error) => {
                self.refused.get_or_insert(error);
            }
        }
    }

    /// One that nobody has read yet may be cast when it is drawn: so this is the least that it needs.
    fn add_lazy(&mut self, shape: &Shape, device: Device) {
        match device.clone().inner() == Device::flex() {
            true => self.add(shape.num_elements() * DType::BF16.size()),
            false => {
                let what = format!("a parameter {shape:?} on {device:?}");
                self.refused.get_or_insert(ScratchError::NotOnFlex { what });
            }
        }
    }

    fn add(&mut self, bytes: usize) {
        if bytes >= PAGE {
            self.bytes += whole_pages(bytes);
        }
    }
}

impl ModuleVisitor for Needed<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        match param.is_initialized() {
            true => self.add_initialized(&param.base().inner().into_dispatch()),
            false => self.add_lazy(&param.lazy_shape(), param.lazy_device()),
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add_initialized(&param.base().inner().into_dispatch());
    }
}

/// Moves the parameters of a model. After a failure, what comes later stays as it is.
struct Placing<'a> {
    scratch: &'a Scratch,
    failed: Option<ScratchError>,
}

impl Placing<'_> {
    fn placed(&mut self, tensor: DispatchTensor) -> DispatchTensor {
        let placed = self.scratch.placed(tensor.clone());
        placed.unwrap_or_else(|error| {
            self.failed = Some(error);
            tensor
        })
    }
}

impl ModuleMapper for Placing<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.failed.is_some() {
            return param;
        }
        let is_trained = param.is_require_grad();
        param.map(|tensor| {
            let tensor = tensor.into_dispatch();
            let autodiff = tensor.autodiff;
            let value = plain(tensor);
            let placed = self.placed(value);
            Tensor::from_dispatch(match (autodiff, is_trained) {
                (DispatchAutodiffContext::Disabled, _) => placed,
                (_, true) => leaf(placed, autodiff),
                (_, false) => constant(placed, autodiff),
            })
        })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        if self.failed.is_some() {
            return param;
        }
        param.map(|tensor| {
            let tensor = tensor.into_dispatch();
            let placed = self.placed(inner(&tensor));
            Tensor::from_dispatch(like(&tensor, placed))
        })
    }
}
