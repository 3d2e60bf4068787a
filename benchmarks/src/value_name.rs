//! Names of options.

use clap::ValueEnum;

/// The name on the command line.
pub fn value_name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().into())
}
