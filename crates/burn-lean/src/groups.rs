//! Groups of parameters, by their paths in a model.

use burn::Tensor;
use burn::module::{Module, Param, ParamGroup, ParamId};
use lean_arithmetic::groups::{is_not_decayed, nearest};
use serde_json::Value;

use crate::error::ReleaseError;
use crate::path::{Path, PathVisitor, WithPaths, path_text};

/// The group of parameters that are usually trained without weight decay: biases, normalisation
/// layers and embeddings.
///
/// These are the trained parameters that
///
/// - have a rank of at most one, which is every bias and the gains of most normalisations,
/// - have a name that ends in `bias`,
/// - or are in a `LayerNorm`, `RmsNorm`, `BatchNorm`, `GroupNorm`, `InstanceNorm` or `Embedding`,
///   Burn's or any other struct of that name.
///
/// A table of positions or a class token that is a parameter of the model itself cannot be told
/// from other matrices: [`fuse`](ParamGroup::fuse) its path.
///
/// They are named by their paths, so the group still matches after a record was loaded. A model
/// without autodiff (`model.valid()`) has no trained parameters.
///
/// ```
/// use burn::module::ParamId;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamWConfig;
/// use burn::tensor::Device;
/// use burn_lean::{WithGradientRelease, no_decay};
///
/// let model: Linear = LinearConfig::new(4, 2).init(&Device::flex().autodiff());
/// let group = no_decay(&model);
/// assert!(group.matches(&ParamId::new(), Some("bias")));
/// assert!(!group.matches(&ParamId::new(), Some("weight")));
///
/// let optim = AdamWConfig::new().with_weight_decay(0.05).init().with_gradient_release();
/// let undecayed = AdamWConfig::new().with_weight_decay(0.0).build();
/// let optim = optim.with_group(group, undecayed, None);
/// # let _ = optim;
/// ```
pub fn no_decay<M: Module>(model: &M) -> ParamGroup {
    let params = Params::of(model).found;
    let params = params
        .iter()
        .filter(|param| is_not_decayed(param.rank, &param.path, &param.container));
    let paths = params.filter(|param| param.is_trainable);
    ParamGroup::from_paths(paths.map(|param| param.path.as_str()).collect())
}

/// Whether a parameter of the model is in the group.
///
/// Burn's `with_group` takes any group, and one with a misspelt path changes nothing.
/// [`ReleaseOptimizer::with_group`](crate::ReleaseOptimizer::with_group) makes this check whenever
/// a model is armed or stepped.
///
/// ```
/// use burn::module::ParamGroup;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Device;
/// use burn_lean::check_group;
///
/// let model: Linear = LinearConfig::new(4, 2).init(&Device::flex());
/// assert!(check_group(&model, &ParamGroup::from_path("bias")).is_ok());
/// let error = check_group(&model, &ParamGroup::from_path("basi")).unwrap_err();
/// assert!(error.to_string().contains("the nearest paths are bias"));
/// ```
///
/// # Errors
///
/// [`EmptyGroup`](ReleaseError::EmptyGroup), with the nearest paths.
pub fn check_group<M: Module>(model: &M, group: &ParamGroup) -> Result<(), ReleaseError> {
    check_groups(model, std::slice::from_ref(group))
}

pub(crate) fn check_groups<M: Module>(
    model: &M,
    groups: &[ParamGroup],
) -> Result<(), ReleaseError> {
    if groups.is_empty() {
        return Ok(());
    }
    let params = Params::of(model).found;
    let is_empty = |group: &&ParamGroup| {
        !params
            .iter()
            .any(|param| group.matches(&param.id, Some(&param.path)))
    };
    let Some(group) = groups.iter().find(is_empty) else {
        return Ok(());
    };
    let wanted = patterns(group);
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let paths: Vec<String> = params.into_iter().map(|param| param.path).collect();
    Err(ReleaseError::EmptyGroup {
        group: match wanted[..] {
            [] => "the ids given".into(),
            _ => format!("{wanted:?}"),
        },
        near: nearest(&wanted, &paths),
    })
}

/// The path of a parameter in a model; its id if the model does not have it.
pub(crate) fn path_of<M: Module>(model: &M, id: ParamId) -> String {
    let mut params = Params::of(model).found.into_iter();
    let found = params.find(|param| param.id == id);
    found.map_or_else(|| id.to_string(), |param| param.path)
}

/// The path patterns of a group. They are private in Burn, but serialized.
fn patterns(group: &ParamGroup) -> Vec<String> {
    fn collect(value: &Value, is_path: bool, patterns: &mut Vec<String>) {
        match value {
            Value::String(text) if is_path => patterns.push(text.clone()),
            Value::Array(values) => values
                .iter()
                .for_each(|value| collect(value, is_path, patterns)),
            Value::Object(fields) => fields
                .iter()
                .for_each(|(name, value)| collect(value, is_path || name == "Path", patterns)),
            _ => {}
        }
    }
    let mut patterns = Vec::new();
    let saved = serde_json::to_value(group).unwrap_or_default();
    collect(&saved["matcher"], false, &mut patterns);
    patterns
}

/// The parameters of a model and their paths, as Burn's groups match them.
#[derive(Default)]
struct Params {
    found: Vec<Found>,
}

struct Found {
    id: ParamId,
    path: String,
    rank: usize,
    /// Burn's `container_type` of the innermost struct or enum around it.
    container: String,
    is_trainable: bool,
}

impl Params {
    fn of<M: Module>(model: &M) -> Self {
        let mut params = Self::default();
        model.visit(&mut WithPaths::new(&mut params));
        params
    }
}

impl PathVisitor for Params {
    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        let mut containers = path.iter().rev().map(|(_, container)| container);
        let container = containers.find(|container| container.contains(':'));
        self.found.push(Found {
            id: param.id,
            path: path_text(path),
            rank: D,
            container: container.cloned().unwrap_or_default(),
            is_trainable: param.is_require_grad(),
        });
    }
}
