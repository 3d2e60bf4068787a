//! Which parameter is in which group, to look at and to compare after a resume.

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
};

use serde::{Deserialize, Serialize};

/// Which group each parameter of a model is in:
/// [`ReleaseOptimizer::group_assignment`](crate::ReleaseOptimizer::group_assignment).
///
/// The record of an optimizer is Burn's and knows no groups. Saved beside it, as any value of serde, this
/// tells what is another way after a resume.
///
/// ```
/// use burn::{
///     backend::{Autodiff, Flex},
///     nn::{Linear, LinearConfig},
///     optim::AdamWConfig,
/// };
/// use burn_gradient_release::{
///     GradientRelease, GroupOptions, ParamGroup, ReleaseOptimizer, WithGradientRelease,
/// };
///
/// type B = GradientRelease<Autodiff<Flex>>;
///
/// let model: Linear<B> = LinearConfig::new(4, 2).init(&Default::default());
/// let optim = |factor: f64| -> ReleaseOptimizer<_, Linear<B>, B> {
///     AdamWConfig::new().init().with_gradient_release().with_group(
///         ParamGroup::from_path("bias"),
///         GroupOptions::new().with_lr_factor(factor),
///     )
/// };
/// let saved = optim(0.5).group_assignment(&model).unwrap();
/// assert_eq!(saved.to_string(), "path \"bias\" (rate x 0.5): bias\nno group: weight");
///
/// let resumed = optim(0.1).group_assignment(&model).unwrap();
/// assert_eq!(
///     resumed.changes_since(&saved),
///     ["bias: path \"bias\" (rate x 0.1), before: path \"bias\" (rate x 0.5)"]
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupAssignment {
    /// By path.
    groups: BTreeMap<String, Option<String>>,
}

impl GroupAssignment {
    pub(super) fn push(&mut self, path: &str, group: Option<String>) {
        self.groups.insert(path.to_string(), group);
    }

    /// Differences from `before`, a line for each parameter.
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let gone = before.groups.keys();
        let gone = gone.filter(|path| !self.groups.contains_key(*path));
        let gone = gone.map(|path| format!("{path}: not in the model any more"));
        let changed = self.groups.iter().filter_map(|(path, group)| {
            let was = match before.groups.get(path) {
                Some(was) if was == group => return None,
                Some(was) => name(was),
                None => "not in the model",
            };
            Some(format!("{path}: {}, before: {was}", name(group)))
        });
        changed.chain(gone).collect()
    }
}

fn name(group: &Option<String>) -> &str {
    group.as_deref().unwrap_or("no group")
}

/// A line for each group.
impl Display for GroupAssignment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut members: BTreeMap<(bool, &str), Vec<&str>> = BTreeMap::new();
        for (path, group) in &self.groups {
            let key = (group.is_none(), name(group));
            members.entry(key).or_default().push(path);
        }
        for (index, ((_, group), paths)) in members.iter().enumerate() {
            let line_break = if index == 0 { "" } else { "\n" };
            write!(f, "{line_break}{group}: {}", paths.join(", "))?;
        }
        Ok(())
    }
}
