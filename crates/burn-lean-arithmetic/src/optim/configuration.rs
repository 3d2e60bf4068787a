//! Values of Burn's configurations, whose fields are private.

use serde::{Serialize, de::DeserializeOwned};

/// The values of a configuration of Burn, as it serializes them.
///
/// # Panics
///
/// If a number of the configuration is not finite, which JSON cannot hold; or if it has other
/// fields than `T`, as that of another version of Burn may.
pub fn configuration<T: DeserializeOwned>(config: &impl Serialize) -> T {
    let values = serde_json::to_value(config).and_then(serde_json::from_value);
    values.unwrap_or_else(|error| {
        panic!(
            "a number of this optimizer's configuration is not finite, or it is the configuration \
             of another version of Burn: {error}"
        )
    })
}
