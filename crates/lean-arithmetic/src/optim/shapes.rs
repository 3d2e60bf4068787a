//! The shape of a parameter, which its gradient and its states have as well.

use std::cell::RefCell;

thread_local! {
    /// The shapes that were told since somebody listens.
    static TOLD: RefCell<Option<Vec<Vec<usize>>>> = const { RefCell::new(None) };
}

/// Checks that a gradient or a state is that of a parameter: one of another shape would be broadcast.
///
/// # Errors
///
/// Why it is not, and the way out.
pub fn check_shape(found: &[usize], expected: &[usize]) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!(
            "a gradient or a state of the optimizer is not of its parameter's shape, with {found:?} \
             where that has {expected:?}: load the record that was saved with this model"
        )),
    }
}

/// [`check_shape`] in a step.
///
/// # Panics
///
/// If the shapes differ.
pub fn assert_shape(found: &[usize], expected: &[usize]) {
    if let Err(reason) = check_shape(found, expected) {
        panic!("{reason}");
    }
}

/// The shapes of the parameters that states belong to, which they tell while they are moved to a device:
/// Burn 0.21 calls nothing else of an optimizer that looks at a state without a step.
pub fn told_shapes(move_states: impl FnOnce()) -> Vec<Vec<usize>> {
    /// After a panic nobody listens.
    struct Listening;
    impl Drop for Listening {
        fn drop(&mut self) {
            TOLD.take();
        }
    }
    TOLD.set(Some(Vec::new()));
    let _listening = Listening;
    move_states();
    TOLD.take().unwrap_or_default()
}

/// Tells the shape of the parameter that a state belongs to, when it is moved to a device.
pub fn tell_shape(shape: impl FnOnce() -> Vec<usize>) {
    TOLD.with_borrow_mut(|told| {
        if let Some(told) = told {
            told.push(shape());
        }
    });
}
