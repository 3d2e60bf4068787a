//! Values of Burn's configurations, whose fields are private.

use serde::{Serialize, de::DeserializeOwned};

/// The values of a configuration of Burn, as it serializes them. In MessagePack and not in JSON,
/// which has no infinities: the optimizer refuses a number that is not finite, by its name.
///
/// # Panics
///
/// If it has other fields than `T`, as that of another version of Burn may.
pub fn configuration<T: DeserializeOwned>(config: &impl Serialize) -> T {
    let saved = rmp_serde::to_vec_named(config).expect("a configuration is plain data");
    rmp_serde::from_slice(&saved).unwrap_or_else(|error| {
        panic!("this optimizer's configuration is that of another version of Burn: {error}")
    })
}
