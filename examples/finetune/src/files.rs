//! Weights from and to `*.safetensors`, a tensor at a time.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::store::bridge::to_data;
use burn::store::burn_pack::Tensor as Stored;
use burn::store::{
    BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleContext, ModuleSnapshot,
    ModuleStore, PyTorchToBurnAdapter, SafetensorsStore,
};
use burn::tensor::{DType, Shape, Tensor};
use serde_json::Value;

const ONE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Tensors of one file or several, not read yet.
#[derive(Debug)]
pub struct Weights(BTreeMap<String, Stored>);

/// What parameters become that are not in a normalization: those stay in f32.
#[derive(Clone, Copy, Debug)]
pub enum Types {
    /// As the file has them; f16 becomes f32.
    Kept,
    /// bf16
    Bf16,
    /// f32
    F32,
}

impl Weights {
    /// Reads the heads of the files in a folder.
    ///
    /// # Errors
    ///
    /// A file is missing or cut, or the index says something else than the files.
    pub fn open(folder: &Path) -> Result<Self> {
        if !folder.join(INDEX).exists() {
            return Ok(Self(tensors_of(&folder.join(ONE))?));
        }
        let text = fs::read_to_string(folder.join(INDEX))?;
        let index: Value = serde_json::from_str(&text).context(INDEX)?;
        let map = index["weight_map"].as_object();
        let map = map.with_context(|| format!("{INDEX} has no `weight_map`"))?;
        let mut files = BTreeMap::new();
        for (name, file) in map {
            let file = file.as_str().with_context(|| format!("{INDEX}: {name}"))?;
            ensure!(
                !file.contains(['/', '\\']),
                "{INDEX}: {file} is of another folder"
            );
            files.entry(file).or_insert_with(Vec::new).push(name);
        }
        let mut all = BTreeMap::new();
        for (file, names) in files {
            let mut tensors = tensors_of(&folder.join(file))?;
            for name in names {
                let tensor = tensors.remove(name);
                let tensor =
                    tensor.with_context(|| format!("{file} has no {name}, as {INDEX} says"))?;
                all.insert(name.clone(), tensor);
            }
            if let Some(name) = tensors.keys().next() {
                bail!("{file} has {name}, of which {INDEX} says nothing");
            }
        }
        Ok(Self(all))
    }

    /// The type of each tensor in the files.
    pub fn types(&self) -> BTreeMap<String, DType> {
        let of = |(name, tensor): (&String, &Stored)| (name.clone(), tensor.dtype);
        self.0.iter().map(of).collect()
    }

    /// Puts the weights into a model. Each is read, transposed and cast when it is first needed, and
    /// replaces what the model would draw.
    ///
    /// # Errors
    ///
    /// A tensor is missing, is not the model's, or has another shape or type. The model is dropped.
    pub fn load<M: Module>(self, model: M, types: Types) -> Result<M> {
        let mut loader = Loader {
            weights: self.0,
            types,
            stack: Stack::default(),
            error: None,
        };
        let model = model.map(&mut loader);
        // Tables of older files, that every reader computes.
        loader
            .weights
            .retain(|name, _| !name.ends_with(".rotary_emb.inv_freq"));
        match (loader.error, loader.weights.keys().next()) {
            (Some(error), _) => Err(error),
            (None, Some(name)) => bail!("the model has nothing that takes {name}"),
            (None, None) => Ok(model),
        }
    }
}

/// Reads all weights of a model that were not read yet.
pub fn read_all<M: Module>(model: &M) {
    struct Read;
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            drop(param.base());
        }
    }
    model.visit(&mut Read);
}

/// Writes a model as `model.safetensors`, each tensor in the type that its name has in `types`.
///
/// # Errors
///
/// The file cannot be written, or a name has no type.
pub fn save<M: Module>(model: &M, folder: &Path, types: BTreeMap<String, DType>) -> Result<()> {
    let mut store = SafetensorsStore::from_file(folder.join(ONE))
        .with_to_adapter(BurnToPyTorchAdapter.chain(Cast(types)))
        .metadata("format", "pt");
    let saved = model.save_into(&mut store);
    saved.map_err(|error| anyhow!("{}: {error}", folder.join(ONE).display()))
}

fn tensors_of(path: &Path) -> Result<BTreeMap<String, Stored>> {
    let mut store = SafetensorsStore::from_file(path);
    let tensors = store.get_all_tensors();
    Ok(tensors
        .map_err(|error| anyhow!("{}: {error}", path.display()))?
        .clone())
}

/// Names and containers around a parameter.
#[derive(Default)]
struct Stack {
    names: Vec<String>,
    containers: Vec<String>,
}

impl Stack {
    fn enter(&mut self, name: &str, container: &str) {
        self.names.push(name.into());
        self.containers.push(container.into());
    }

    fn exit(&mut self) {
        self.names.pop();
        self.containers.pop();
    }

    /// The name of the parameter in the files.
    fn name(&self) -> String {
        let (last, path) = self.names.split_last().expect("a parameter is a field");
        let container = ModuleContext::new(&self.containers).module_type();
        let other =
            PyTorchToBurnAdapter.get_alternative_param_name(last, container.unwrap_or_default());
        [path, &[other.unwrap_or_else(|| last.clone())]]
            .concat()
            .join(".")
    }
}

struct Loader {
    weights: BTreeMap<String, Stored>,
    types: Types,
    stack: Stack,
    /// The first one: Burn's traversal cannot fail.
    error: Option<anyhow::Error>,
}

impl Loader {
    /// The tensor of the parameter that the traversal is at, as the model has it.
    fn find(&mut self, shape: &Shape) -> Result<Stored> {
        let name = self.stack.name();
        let found = self.weights.remove(&name);
        let mut found = found.with_context(|| format!("{name} is in no file"))?;
        ensure!(
            matches!(found.dtype, DType::F32 | DType::BF16 | DType::F16),
            "{name} is in {:?}; known are F32, BF16, F16",
            found.dtype
        );
        let context = ModuleContext::new(&self.stack.containers);
        let is_norm = context.module_type() == Some("Struct:RmsNorm");
        let dtype = match (self.types, found.dtype) {
            (Types::F32, _) | (Types::Kept, DType::F16) => DType::F32,
            _ if is_norm => DType::F32,
            (Types::Bf16, _) => DType::BF16,
            (Types::Kept, dtype) => dtype,
        };
        let (of_file, mut of_model) = (found.shape.to_vec(), shape.to_vec());
        if context.module_type() == Some("Struct:Linear") {
            of_model.reverse();
        }
        // The adapter tells by the last name what is a weight.
        found.name = self.stack.names.join(".");
        let adapter = PyTorchToBurnAdapter.chain(FloatCastAdapter::to(dtype));
        let tensor = adapter.adapt(found, context);
        ensure!(
            tensor.shape == *shape,
            "{name} is {of_file:?} in the file, and {of_model:?} by config.json"
        );
        Ok(tensor)
    }
}

impl ModuleMapper for Loader {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.stack.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.stack.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = param.lazy_shape();
        match self.find(&shape) {
            Ok(stored) => {
                let (id, device) = (param.id, param.lazy_device());
                let read = move |device: &burn::tensor::Device, is_trained| {
                    // Heads were read before: only a file that was cut since is wrong.
                    let data =
                        to_data(&stored).unwrap_or_else(|error| panic!("{}: {error}", stored.name));
                    let dtype = data.dtype();
                    Tensor::from_data(data, (device, dtype)).set_require_grad(is_trained)
                };
                Param::uninitialized(id, read, device, true, shape)
            }
            Err(error) => {
                self.error.get_or_insert(error);
                param
            }
        }
    }
}

/// Casts tensors to the types that their names have.
#[derive(Clone)]
struct Cast(BTreeMap<String, DType>);

impl ModuleAdapter for Cast {
    fn adapt(&self, tensor: Stored, context: ModuleContext<'_>) -> Stored {
        match self.0.get(&tensor.name) {
            Some(&dtype) => FloatCastAdapter::to(dtype).adapt(tensor, context),
            None => tensor,
        }
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}
