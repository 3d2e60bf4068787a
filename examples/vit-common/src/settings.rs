//! Settings of a run that may be resumed: from an option, else from the run, else the default.

use anyhow::{Result, ensure};
use std::fmt::Display;

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
