//! Settings of a run: a struct of plain fields, which may be that of the command line.

use serde::Serialize;
use serde::de::{DeserializeOwned, Error};
use serde_json::{Map, Value};

use crate::error::SettingsError;

/// The settings with which a run goes on: `saved`, and of `now` what was `given` on the command
/// line. Names are those of fields; those in `may_change` may be given with another value.
///
/// # Errors
///
/// A setting that must not change was given with another value.
pub fn resumed<S: Serialize + DeserializeOwned>(
    saved: &S,
    now: &S,
    given: &[impl AsRef<str>],
    may_change: &[&str],
) -> Result<S, SettingsError> {
    let (mut settings, mut now) = (fields(saved)?, fields(now)?);
    for name in given.iter().map(AsRef::as_ref) {
        // An option that is no setting of the run, as where its folder is.
        let Some(value) = now.remove(name) else {
            continue;
        };
        match settings.get_mut(name) {
            Some(saved) if *saved != value && !may_change.contains(&name) => {
                return Err(SettingsError::Changed {
                    name: name.replace('_', "-"),
                    saved: text(saved),
                    now: text(&value),
                });
            }
            _ => settings.insert(name.into(), value),
        };
    }
    Ok(serde_json::from_value(Value::Object(settings))?)
}

/// What tells a run from others: all of its settings but those that may change when it is resumed.
/// A setting without a value is left out: a run of before there was such a setting stays the same.
///
/// # Errors
///
/// The settings are no JSON.
pub fn identity(settings: &impl Serialize, may_change: &[&str]) -> Result<String, SettingsError> {
    let settings = listed(settings)?.into_iter();
    let told = settings.filter(|(name, _)| !may_change.contains(&name.as_str()));
    Ok(told
        .filter(|(_, value)| value != "null")
        .map(|(name, value)| format!("{name}: {value}\n"))
        .collect())
}

/// The settings one by one, sorted by name, with their values as JSON: to compare those of several
/// processes.
///
/// # Errors
///
/// The settings are no JSON.
pub fn listed(settings: &impl Serialize) -> Result<Vec<(String, String)>, SettingsError> {
    let settings = fields(settings)?.into_iter();
    let mut all: Vec<_> = settings
        .map(|(name, value)| (name, value.to_string()))
        .collect();
    // In the order of the fields, if serde_json is built so.
    all.sort();
    Ok(all)
}

fn fields(settings: &impl Serialize) -> Result<Map<String, Value>, SettingsError> {
    match serde_json::to_value(settings)? {
        Value::Object(fields) => Ok(fields),
        _ => Err(serde_json::Error::custom("they have no fields").into()),
    }
}

/// As on a command line: texts without quotes.
fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), String::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Settings {
        batch_size: usize,
        optimizer: String,
        device: String,
        budget: Option<u64>,
    }

    fn settings(batch_size: usize, optimizer: &str, device: &str) -> Settings {
        Settings {
            batch_size,
            optimizer: optimizer.into(),
            device: device.into(),
            budget: None,
        }
    }

    fn resume(now: &Settings, given: &[&str]) -> Result<Settings, String> {
        let saved = settings(32, "sgd", "cpu");
        let resumed = resumed(&saved, now, given, &["device", "budget"]);
        resumed.map_err(|error| error.to_string())
    }

    #[test]
    fn a_resumed_run_keeps_its_settings() {
        let by_default = settings(64, "adamw", "cuda");
        assert_eq!(resume(&by_default, &[]), Ok(settings(32, "sgd", "cpu")));
        let given = ["device", "artifact_dir"];
        let on_cuda = settings(32, "sgd", "cuda");
        assert_eq!(resume(&by_default, &given), Ok(on_cuda));
        let same = settings(32, "adamw", "cpu");
        assert!(resume(&same, &["batch_size"]).is_ok());
        let refused = "the run to resume has --batch-size 32, not 64";
        let found = resume(&by_default, &["device", "batch_size"]);
        assert_eq!(found.unwrap_err(), refused);
        let refused = "the run to resume has --optimizer sgd, not adamw";
        assert_eq!(resume(&by_default, &["optimizer"]).unwrap_err(), refused);
    }

    #[test]
    fn a_run_is_the_same_whatever_may_change() {
        let identity = |settings| identity(&settings, &["device"]).unwrap();
        let run = identity(settings(32, "sgd", "cpu"));
        assert_eq!(run, "batch_size: 32\noptimizer: \"sgd\"\n");
        assert_eq!(run, identity(settings(32, "sgd", "cuda")));
        assert_ne!(run, identity(settings(64, "sgd", "cpu")));
    }

    #[test]
    fn settings_are_listed_by_name() {
        let listed = listed(&settings(32, "sgd", "cpu")).unwrap();
        let names: Vec<_> = listed.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["batch_size", "budget", "device", "optimizer"]);
    }
}
