//! Groups of parameters, by ids or by paths.

use std::{
    collections::{BTreeSet, HashSet},
    fmt::{self, Display, Formatter},
    sync::Arc,
};

use burn::{
    module::{Module, ParamId},
    tensor::backend::Backend,
};
use lean_arithmetic::groups::is_not_decayed;
use regex::Regex;

use super::paths::visit_paths;

/// Why a [`ParamGroup`] cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParamGroupError {
    /// The pattern is not a regular expression. Holds the pattern and the error in it.
    #[error("invalid pattern for the paths of parameters: {0}")]
    InvalidPatternError(String),
}

/// A set of parameters, by their ids or by their paths in the model.
///
/// The names are those of Burn 0.22, and so are the paths: the names of the fields from the model
/// to the parameter, joined by dots, such as `encoder.layers.0.norm_1.gamma`. The name of a list
/// element is its index, that of an enum its variant; an `Option` adds none.
///
/// A group names parameters and holds none of them. Loading a record gives the parameters of a
/// model new ids, but never new paths.
///
/// ```
/// use burn::module::ParamId;
/// use burn_gradient_release::ParamGroup;
///
/// # fn main() -> Result<(), burn_gradient_release::ParamGroupError> {
/// let head = ParamGroup::from_regex(r"^(classifier|pooler)\.")?;
/// let group = head.exclude(ParamGroup::from_predicate("bias"));
///
/// let id = ParamId::new();
/// assert!(group.matches(&id, Some("classifier.weight")));
/// assert!(!group.matches(&id, Some("classifier.bias")));
/// assert!(!group.matches(&id, Some("encoder.classifier.weight")));
/// assert_eq!(group.to_string(), r#"regex /^(classifier|pooler)\./ but not paths with "bias""#);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ParamGroup(Arc<Matcher>);

#[derive(Debug)]
enum Matcher {
    All,
    Ids(HashSet<ParamId>),
    /// Exactly one of these.
    Paths(BTreeSet<String>),
    /// All of these occur in the path.
    Containing(Vec<String>),
    /// All of these match.
    Regexes(Vec<Regex>),
    Any(Vec<ParamGroup>),
    Except(ParamGroup, ParamGroup),
}

impl From<Matcher> for ParamGroup {
    fn from(matcher: Matcher) -> Self {
        Self(Arc::new(matcher))
    }
}

impl ParamGroup {
    /// Every parameter.
    pub fn all() -> Self {
        Matcher::All.into()
    }

    /// The parameters with these ids.
    pub fn from_ids(ids: impl IntoIterator<Item = ParamId>) -> Self {
        Matcher::Ids(ids.into_iter().collect()).into()
    }

    /// The parameters that are in the module now, by their ids.
    pub fn ids_from_module<B: Backend, M: Module<B>>(module: &M) -> Self {
        let mut ids = HashSet::new();
        visit_paths(module, |_, id, _, _, _| {
            ids.insert(id);
        });
        Matcher::Ids(ids).into()
    }

    /// The parameter with exactly this path.
    pub fn from_path(path: impl Into<String>) -> Self {
        Self::from_paths([path])
    }

    /// The parameters with exactly one of these paths.
    pub fn from_paths(paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Matcher::Paths(owned(paths)).into()
    }

    /// The parameters with this text somewhere in their path: `layers.1` is a part of
    /// `layers.10.weight` too, and `layers.1.` is not.
    pub fn from_predicate(text: impl Into<String>) -> Self {
        Self::from_predicates([text])
    }

    /// The parameters with each of these texts somewhere in their path.
    pub fn from_predicates(texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Matcher::Containing(owned(texts)).into()
    }

    /// The parameters with at least one of these texts in their path. Without a text, none; in Burn
    /// 0.22, every parameter that has a path.
    pub fn from_any_predicates(texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        any(texts.into_iter().map(Self::from_predicate).collect())
    }

    /// The parameters whose path has a match of this pattern. `^` and `$` match the ends of the
    /// path.
    ///
    /// # Errors
    ///
    /// [`InvalidPatternError`](ParamGroupError::InvalidPatternError) if the pattern is no regular
    /// expression of the `regex` crate.
    pub fn from_regex(pattern: impl AsRef<str>) -> Result<Self, ParamGroupError> {
        Self::from_regexes([pattern])
    }

    /// The parameters whose path has a match of each of these patterns.
    ///
    /// # Errors
    ///
    /// As [`from_regex`](Self::from_regex).
    pub fn from_regexes(
        patterns: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, ParamGroupError> {
        let compile = |pattern: &str| {
            Regex::new(pattern).map_err(|e| ParamGroupError::InvalidPatternError(e.to_string()))
        };
        let patterns = patterns.into_iter().map(|text| compile(text.as_ref()));
        Ok(Matcher::Regexes(patterns.collect::<Result<_, _>>()?).into())
    }

    /// The parameters whose path has a match of at least one of these patterns. Without a pattern,
    /// none; in Burn 0.22, every parameter that has a path.
    ///
    /// # Errors
    ///
    /// As [`from_regex`](Self::from_regex).
    pub fn from_any_regexes(
        patterns: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, ParamGroupError> {
        let groups = patterns.into_iter().map(Self::from_regex);
        Ok(any(groups.collect::<Result<_, _>>()?))
    }

    /// Parameters usually trained without weight decay: biases, normalisation layers, embeddings.
    ///
    /// These are the trained parameters that
    ///
    /// - have a rank of at most one, which is every bias and the gains of most normalisations,
    /// - have a name that ends in `bias`,
    /// - or are in a `LayerNorm`, `RmsNorm`, `BatchNorm`, `GroupNorm`, `InstanceNorm` or
    ///   `Embedding`, Burn's or any other struct of that name.
    ///
    /// A table of positions or a class token that is a parameter of the model itself cannot be told
    /// from other matrices: [`fuse`](Self::fuse) its path.
    ///
    /// They are named by their paths, so the group still matches after a record was loaded. A model
    /// of an inner backend (`model.valid()`) has no trained parameters.
    ///
    /// ```
    /// use burn::{
    ///     backend::{Autodiff, Flex},
    ///     module::ParamId,
    ///     nn::{Linear, LinearConfig},
    /// };
    /// use burn_gradient_release::{GradientRelease, ParamGroup};
    ///
    /// type B = GradientRelease<Autodiff<Flex>>;
    ///
    /// let model: Linear<B> = LinearConfig::new(4, 2).init(&Default::default());
    /// let group = ParamGroup::no_decay(&model);
    /// assert_eq!(group.to_string(), r#"path "bias""#);
    /// assert!(group.matches(&ParamId::new(), Some("bias")));
    /// assert!(!group.matches(&ParamId::new(), Some("weight")));
    /// ```
    pub fn no_decay<B: Backend, M: Module<B>>(model: &M) -> Self {
        let mut paths = Vec::new();
        visit_paths(model, |path, _, shape, container, is_trainable| {
            if is_trainable && is_not_decayed(shape.num_dims(), path, container) {
                paths.push(path.to_owned());
            }
        });
        Self::from_paths(paths)
    }

    /// The parameters of either group. A parameter that one group excludes is in the result if the
    /// other contains it; Burn 0.22 drops the exclusions of both.
    pub fn fuse(self, other: &Self) -> Self {
        any(vec![self, other.clone()])
    }

    /// The parameters of this group that are not in the other. A parameter that the other excludes
    /// is not in it, and stays; Burn 0.22 drops the other's exclusion.
    pub fn exclude(self, group: Self) -> Self {
        Matcher::Except(self, group).into()
    }

    /// Whether a parameter is in the group. Without a path, only its id can tell.
    pub fn matches(&self, id: &ParamId, path: Option<&str>) -> bool {
        let in_path = |is_match: &dyn Fn(&str) -> bool| path.is_some_and(is_match);
        match self.0.as_ref() {
            Matcher::All => true,
            Matcher::Ids(ids) => ids.contains(id),
            Matcher::Paths(paths) => in_path(&|path| paths.contains(path)),
            Matcher::Containing(texts) => {
                in_path(&|path| texts.iter().all(|text| path.contains(text)))
            }
            Matcher::Regexes(patterns) => {
                in_path(&|path| patterns.iter().all(|pattern| pattern.is_match(path)))
            }
            Matcher::Any(groups) => groups.iter().any(|group| group.matches(id, path)),
            Matcher::Except(group, excluded) => {
                group.matches(id, path) && !excluded.matches(id, path)
            }
        }
    }

    /// The pattern that paths are searched for.
    pub(crate) fn patterns(&self) -> Vec<&str> {
        match self.0.as_ref() {
            Matcher::All | Matcher::Ids(_) => Vec::new(),
            Matcher::Paths(texts) => texts.iter().map(String::as_str).collect(),
            Matcher::Containing(texts) => texts.iter().map(String::as_str).collect(),
            Matcher::Regexes(patterns) => patterns.iter().map(Regex::as_str).collect(),
            Matcher::Any(groups) => groups.iter().flat_map(Self::patterns).collect(),
            Matcher::Except(group, _) => group.patterns(),
        }
    }

    /// Prints the group as an operand: in parentheses if it has operands itself.
    fn operand(&self) -> String {
        match self.0.as_ref() {
            Matcher::Any(groups) if groups.len() > 1 => format!("({self})"),
            Matcher::Except(..) => format!("({self})"),
            _ => self.to_string(),
        }
    }
}

fn owned<C: FromIterator<String>>(texts: impl IntoIterator<Item = impl Into<String>>) -> C {
    texts.into_iter().map(Into::into).collect()
}

/// The union of groups, flattened if these are unions themselves.
fn any(groups: Vec<ParamGroup>) -> ParamGroup {
    let flat = groups
        .into_iter()
        .flat_map(|group| match group.0.as_ref() {
            Matcher::Any(groups) => groups.clone(),
            _ => vec![group],
        })
        .collect();
    Matcher::Any(flat).into()
}

/// Prints the group in one line, for messages.
impl Display for ParamGroup {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.as_ref() {
            Matcher::All => f.write_str("all parameters"),
            Matcher::Ids(ids) if ids.len() == 1 => f.write_str("1 id"),
            Matcher::Ids(ids) => write!(f, "{} ids", ids.len()),
            Matcher::Paths(paths) => match Vec::from_iter(paths).as_slice() {
                [] => f.write_str("no path"),
                [path] => write!(f, "path {path:?}"),
                [first, second] => write!(f, "paths {first:?} and {second:?}"),
                [first, .., last] => write!(f, "{} paths, {first:?} to {last:?}", paths.len()),
            },
            Matcher::Containing(texts) if texts.is_empty() => f.write_str("all paths"),
            Matcher::Containing(texts) => {
                let texts: Vec<_> = texts.iter().map(|text| format!("{text:?}")).collect();
                write!(f, "paths with {}", texts.join(" and "))
            }
            Matcher::Regexes(patterns) if patterns.is_empty() => f.write_str("all paths"),
            Matcher::Regexes(patterns) => {
                let patterns = patterns.iter().map(Regex::as_str);
                let patterns: Vec<_> = patterns.map(|pattern| format!("/{pattern}/")).collect();
                write!(f, "regex {}", patterns.join(" and ").replace('\n', "\\n"))
            }
            Matcher::Any(groups) if groups.is_empty() => f.write_str("no parameter"),
            Matcher::Any(groups) => {
                let groups: Vec<_> = groups.iter().map(Self::operand).collect();
                f.write_str(&groups.join(" or "))
            }
            Matcher::Except(group, excluded) => {
                write!(f, "{} but not {}", group.operand(), excluded.operand())
            }
        }
    }
}
