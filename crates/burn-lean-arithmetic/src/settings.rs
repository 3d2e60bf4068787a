//! Settings that nothing could be stepped with.

/// A setting that is out of range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutOfRange {
    /// Its name.
    pub setting: &'static str,
    /// Its value.
    pub value: f64,
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
