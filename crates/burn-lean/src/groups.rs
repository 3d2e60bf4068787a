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
    struct NotDecayed(Vec<String>);
    impl PathVisitor for NotDecayed {
        fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
            let text = path_text(path);
            // One that was not read yet is not read for this, so it may be frozen.
            let is_trained = match param.is_initialized() {
                true => param.is_require_grad(),
                false => param.lazy_device().is_autodiff(),
            };
            if is_trained && is_not_decayed(D, &text, container(path)) {
                self.0.push(text);
            }
        }
    }
    let mut paths = NotDecayed(Vec::new());
    model.visit(&mut WithPaths::new(&mut paths));
    let paths = paths.0;
    ParamGroup::from_paths(paths.iter().map(String::as_str).collect())
}

/// Burn's `container_type` of the innermost struct or enum around a parameter.
fn container(path: &Path) -> &str {
    let mut containers = path.iter().rev().map(|(_, container)| container.as_str());
    let found = containers.find(|container| container.contains(':'));
    found.unwrap_or_default()
}

/// Whether a parameter of the model is in the group.
///
/// Burn's `with_group` takes any group, and one with a misspelt path changes nothing.
/// [`ReleaseOptimizer::with_group`](crate::ReleaseOptimizer::with_group) makes this check in
/// each step.
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
    // Reads no weight, which would draw it.
    struct Params(Vec<(ParamId, String)>);
    impl PathVisitor for Params {
        fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
            self.0.push((param.id, path_text(path)));
        }
    }
    let mut params = Params(Vec::new());
    model.visit(&mut WithPaths::new(&mut params));
    let params = params.0;
    let is_empty = |group: &&ParamGroup| {
        let mut params = params.iter();
        !params.any(|(id, path)| group.matches(id, Some(path)))
    };
    let Some(group) = groups.iter().find(is_empty) else {
        return Ok(());
    };
    let wanted = patterns(group);
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let paths: Vec<String> = params.into_iter().map(|(_, path)| path).collect();
    Err(ReleaseError::EmptyGroup {
        group: match wanted[..] {
            [] => {
                "the ids given, or of nothing (`no_decay` of matrices alone: leave it out)".into()
            }
            _ => format!("{wanted:?}"),
        },
        near: nearest(&wanted, &paths),
    })
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
