//! Settings that nothing could be stepped with.

/// A setting that is out of range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutOfRange {
    /// Its name.
    pub setting: &'static str,
    /// Its value.
    pub value: f64,
}

/// Settings that are fine.
///
/// # Panics
///
/// If one is not, which is named with its value.
pub(crate) fn expect_in_range(optimizer: &str, settings: &[(&'static str, f64, bool)]) {
    if let Some(OutOfRange { setting, value }) = first_out_of_range(settings) {
        panic!(
            "{optimizer}: {setting} is {value}, which is out of range: no step can be taken with it"
        );
    }
}

/// A threshold of clipping that is fine. An infinite one clips nothing.
///
/// # Panics
///
/// If it is not above zero: every gradient would be zero, or of the other sign.
pub fn expect_threshold(threshold: f32) {
    let threshold = positive("the threshold", threshold.into());
    expect_in_range("clipping of gradients", &[threshold]);
}

/// The decay rate of a moving average. At one the average never moves, and its bias correction is
/// NaN.
pub(crate) fn share(name: &'static str, value: f64) -> (&'static str, f64, bool) {
    (name, value, (0.0..1.0).contains(&value))
}

/// A number that is added, or multiplied with: not below zero, nor infinite.
pub(crate) fn amount(name: &'static str, value: f64) -> (&'static str, f64, bool) {
    (name, value, value >= 0.0 && value.is_finite())
}

/// A number that is divided by, or a bound.
pub(crate) fn positive(name: &'static str, value: f64) -> (&'static str, f64, bool) {
    (name, value, value > 0.0)
}

/// The first of the settings whose value is not fine. No number never is.
pub(crate) fn first_out_of_range(settings: &[(&'static str, f64, bool)]) -> Option<OutOfRange> {
    let mut settings = settings.iter();
    let (setting, value, _) = settings.find(|(_, value, is_fine)| !is_fine || value.is_nan())?;
    Some(OutOfRange {
        setting,
        value: *value,
    })
}
