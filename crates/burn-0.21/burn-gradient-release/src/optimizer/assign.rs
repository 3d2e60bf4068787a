//! The group and the rate of each parameter of a model.

use std::collections::{HashMap, HashSet};

use burn::{
    module::{AutodiffModule, ParamId},
    optim::{LearningRate, SimpleOptimizer},
};

use lean_arithmetic::{OutOfRange, groups::nearest};

use super::{precision::check_precision, step_plan::Own, stepper::Stepper};
use crate::{
    ReleaseBackend,
    error::ReleaseError,
    groups::{ParamGroup, Published, visit_paths},
};

/// Settings of the parameters that are in a group or have a rate of their own. `learning_rate` is
/// the rate of the step; without one, rates are not checked.
///
/// If parameters share an id, the settings are those of the one that is trained.
pub(super) fn assign<O, B, M>(
    stepper: &Stepper<O, B>,
    learning_rate: Option<LearningRate>,
    model: &M,
) -> Result<HashMap<ParamId, Own>, ReleaseError>
where
    O: SimpleOptimizer<B::InnerBackend> + 'static,
    B: ReleaseBackend,
    M: AutodiffModule<B>,
{
    check_settings(stepper)?;
    stepper.gradients.check_scale()?;
    if stepper.gradients.scaler.is_some() {
        check_precision::<B, M>(model)?;
    }
    let published = match learning_rate {
        Some(rate) => {
            check_rate(rate)?;
            published_rates(stepper, rate)?
        }
        None => None,
    };
    if let Some(published) = &published {
        published
            .groups
            .iter()
            .try_for_each(|(_, rate)| check_rate(*rate))?;
    }
    if stepper.groups.is_empty() && published.is_none() {
        return Ok(HashMap::new());
    }
    let rate_groups = published.as_ref().map_or(&[][..], |rates| &rates.groups);
    let mut is_found = vec![false; stepper.groups.len() + rate_groups.len()];
    let (found_options, found_rates) = is_found.split_at_mut(stepper.groups.len());
    let mut own = HashMap::new();
    let mut trained = HashSet::new();
    let mut paths = Vec::new();
    visit_paths::<B, M>(model, |path, param, _, _, is_trained| {
        let group = last_match(&stepper.groups, found_options, param, path);
        let rate = last_match(rate_groups, found_rates, param, path);
        paths.push(path.to_string());
        if is_trained && trained.insert(param) {
            own.remove(&param);
        }
        let is_of_another = !is_trained && trained.contains(&param);
        if is_of_another || (group.is_none() && rate.is_none()) {
            return;
        }
        let rate = rate.map_or(learning_rate, |rate| Some(rate_groups[rate].1));
        let options = group.map(|group| &stepper.groups[group].1);
        let factor = options.map_or(1.0, |options| options.lr_factor());
        own.insert(
            param,
            Own {
                learning_rate: rate.unwrap_or_default() * factor,
                group,
                is_frozen: options.is_some_and(|options| options.is_frozen()),
            },
        );
    });
    let groups = stepper.groups.iter().map(|(group, _)| group);
    let groups = groups.chain(rate_groups.iter().map(|(group, _)| group));
    match groups.zip(&is_found).find(|(_, is_found)| !**is_found) {
        Some((group, _)) => Err(ReleaseError::EmptyGroup {
            group: group.to_string(),
            near: nearest(&group.patterns(), &paths),
        }),
        None => {
            let mut rates = own.values().map(|own| own.learning_rate);
            rates.try_for_each(check_rate)?;
            Ok(own)
        }
    }
}

fn check_rate(rate: LearningRate) -> Result<(), ReleaseError> {
    // An infinite rate turns a weight with a gradient of zero into NaN.
    match rate.is_finite() && rate >= 0.0 {
        true => Ok(()),
        false => Err(ReleaseError::OutOfRange {
            setting: "the learning rate".into(),
            value: rate,
        }),
    }
}

fn check_settings<O, B>(stepper: &Stepper<O, B>) -> Result<(), ReleaseError>
where
    O: SimpleOptimizer<B::InnerBackend>,
    B: ReleaseBackend,
{
    let mut factors = stepper
        .groups
        .iter()
        .map(|(_, options)| options.lr_factor());
    let factor = factors.find(|factor| !factor.is_finite() || *factor < 0.0);
    let setting = stepper.gradients.out_of_range();
    let setting = setting.or_else(|| {
        Some(OutOfRange {
            setting: "lr_factor",
            value: factor?,
        })
    });
    match setting {
        Some(OutOfRange { setting, value }) => Err(ReleaseError::OutOfRange {
            setting: setting.into(),
            value,
        }),
        None => Ok(()),
    }
}

/// The last group that the parameter is in. Notes all its groups.
fn last_match<T>(
    groups: &[(ParamGroup, T)],
    is_found: &mut [bool],
    param: ParamId,
    path: &str,
) -> Option<usize> {
    let mut last = None;
    for (index, (group, _)) in groups.iter().enumerate() {
        if group.matches(&param, Some(path)) {
            is_found[index] = true;
            last = Some(index);
        }
    }
    last
}

fn published_rates<O, B>(
    stepper: &Stepper<O, B>,
    given: LearningRate,
) -> Result<Option<Published>, ReleaseError>
where
    O: SimpleOptimizer<B::InnerBackend>,
    B: ReleaseBackend,
{
    let Some(rates) = &stepper.learning_rates else {
        return Ok(None);
    };
    match rates.published() {
        Some(published) if published.base.to_bits() == given.to_bits() => Ok(Some(published)),
        published => Err(ReleaseError::GroupRates {
            published: published.map(|published| published.base),
            given,
        }),
    }
}
