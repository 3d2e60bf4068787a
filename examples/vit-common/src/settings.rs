//! Settings of a run that may be resumed: from an option, else from the run, else the default.

use anyhow::{Result, ensure};
use serde_json::Value;
use std::fmt::Display;

/// Settings that are saved as JSON, one by one and sorted: `engine.optimizer` is the optimizer of
/// the engine.
pub fn flat(settings: &Value) -> Vec<(String, &Value)> {
    let mut all = Vec::new();
    flatten(String::new(), settings, &mut all);
    // In the order of the fields, if serde_json is built so.
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    all
}

/// What tells a run from others: all of its settings but those that may change when it is resumed.
///
/// A setting that is null is left out: a run of before there was such a setting stays the same run.
pub fn identity(settings: &Value, may_change: &[&str]) -> String {
    let settings = flat(settings).into_iter();
    settings
        .filter(|(name, value)| !may_change.contains(&name.as_str()) && !value.is_null())
        .map(|(name, value)| format!("{name}: {value}\n"))
        .collect()
}

fn flatten<'a>(name: String, value: &'a Value, all: &mut Vec<(String, &'a Value)>) {
    let Value::Object(fields) = value else {
        return all.push((name, value));
    };
    for (field, value) in fields {
        let name = match name.as_str() {
            "" => field.clone(),
            of => format!("{of}.{field}"),
        };
        flatten(name, value, all);
    }
}

/// The option, else the setting of the resumed run, else the default.
pub fn given<T>(given: Option<T>, saved: Option<T>, default: T) -> T {
    given.or(saved).unwrap_or(default)
}

/// As [`given`], for a setting that must not change when a run is resumed.
pub fn agreed<T: PartialEq + Display>(
    name: &str,
    value: Option<T>,
    saved: Option<T>,
    default: T,
) -> Result<T> {
    if let (Some(value), Some(saved)) = (&value, &saved) {
        ensure!(
            value == saved,
            "the run to resume has --{name} {saved}, not {value}"
        );
    }
    Ok(given(value, saved, default))
}

/// As [`agreed`], for a setting that a run may be without.
pub fn agreed_if_any<T: Copy + PartialEq + Display>(
    name: &str,
    value: Option<T>,
    saved: Option<Option<T>>,
) -> Result<Option<T>> {
    match saved {
        None => Ok(value),
        Some(None) => {
            ensure!(value.is_none(), "the run to resume has no --{name}");
            Ok(None)
        }
        Some(Some(saved)) => agreed(name, value, Some(saved), saved).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Preset;

    #[test]
    fn a_resumed_run_keeps_its_settings() {
        assert_eq!(agreed("seed", None, Some(7), 42).unwrap(), 7);
        assert_eq!(agreed("seed", Some(7), Some(7), 42).unwrap(), 7);
        assert_eq!(agreed("seed", None, None, 42).unwrap(), 42);
        let error = agreed(
            "preset",
            Some(Preset::Small),
            Some(Preset::Tiny),
            Preset::Tiny,
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            "the run to resume has --preset tiny, not small"
        );
    }
}
