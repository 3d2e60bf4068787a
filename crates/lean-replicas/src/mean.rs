//! The mean over all processes, added up in the order of their ranks.

use std::ops::{AddAssign, Div};

use bytemuck::Pod;

use crate::communicator::{CommunicationError, Communicator};

/// Bytes sent at once. A reduction needs twice as many in addition to its gradient.
const SEGMENT: usize = 512 << 10;

/// The receivers of a mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    All,
    Rank(usize),
}

/// A number that can be added up.
pub trait Summand: Pod + AddAssign + Div<Output = Self> + Send {
    /// The number of summands, as a divisor.
    fn from_count(count: usize) -> Self;
}

impl Summand for f32 {
    fn from_count(count: usize) -> Self {
        count as f32
    }
}

impl Summand for f64 {
    fn from_count(count: usize) -> Self {
        count as f64
    }
}

/// Replaces `values` by the mean over all processes, on the processes that it is sent to. Elsewhere
/// `values` are undefined.
///
/// Each process adds up one part of the values and divides the sum: the others send it their part,
/// and get its mean. Unlike MPI's own sums, these have a fixed order.
pub(crate) fn mean<E: Summand>(
    communicator: &dyn Communicator,
    values: &mut [E],
    to: To,
) -> Result<(), CommunicationError> {
    let size = communicator.size();
    let segment = (SEGMENT / size_of::<E>()).max(size);
    for values in values.chunks_mut(segment) {
        let part = values.len().div_ceil(size);
        let mut parts = vec![E::zeroed(); part * size];
        parts[..values.len()].copy_from_slice(values);
        let of_all = communicator.all_to_all(bytemuck::cast_slice(&parts))?;
        drop(parts);
        let sum: Vec<E> = add_up(&of_all, part);
        drop(of_all);
        let count = E::from_count(size);
        let mean: Vec<E> = sum.into_iter().map(|sum| sum / count).collect();
        let means = match to {
            To::All => communicator.all_gather(bytemuck::cast_slice(&mean))?,
            To::Rank(rank) => communicator.gather(rank, bytemuck::cast_slice(&mean))?,
        };
        let bytes = bytemuck::cast_slice_mut(values);
        if let Some(means) = means.get(..bytes.len()) {
            bytes.copy_from_slice(means);
        }
    }
    Ok(())
}

/// The sum of all runs of `part` numbers.
fn add_up<E: Summand>(runs: &[u8], part: usize) -> Vec<E> {
    let mut runs = runs.chunks_exact(part * size_of::<E>());
    let first = runs.next().unwrap_or_default();
    let mut sum = bytemuck::pod_collect_to_vec::<u8, E>(first);
    for run in runs {
        let numbers = run.chunks_exact(size_of::<E>());
        for (sum, number) in sum.iter_mut().zip(numbers) {
            *sum += bytemuck::pod_read_unaligned(number);
        }
    }
    sum
}
