//! Locks without poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whoever has panicked before: what is left half-way says so by itself.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
