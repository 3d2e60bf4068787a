//! Bytes of any length, in segments that MPI can count.

use crate::communicator::{CommunicationError, Communicator};

/// How many bytes are sent at once.
const SEGMENT: usize = 64 << 20;

/// The bytes of the process `root` in the place of those of the others.
pub(crate) fn broadcast(
    communicator: &dyn Communicator,
    root: usize,
    bytes: &mut [u8],
) -> Result<(), CommunicationError> {
    let mut segments = bytes.chunks_mut(SEGMENT);
    segments.try_for_each(|segment| communicator.broadcast(root, segment))
}

/// The bytes of each process, at the first one.
pub(crate) fn gather(
    communicator: &dyn Communicator,
    bytes: &[u8],
) -> Result<Vec<Vec<u8>>, CommunicationError> {
    let lengths = communicator.all_gather(&bytes.len().to_ne_bytes())?;
    let lengths: Vec<_> = lengths
        .chunks_exact(size_of::<usize>())
        .map(|length| usize::from_ne_bytes(length.try_into().expect("a number")))
        .collect();
    let longest = lengths.iter().copied().max().unwrap_or_default();
    let mut all = vec![Vec::new(); communicator.size()];
    for begin in (0..longest).step_by(SEGMENT) {
        let mut segment = vec![0; SEGMENT.min(longest - begin)];
        let rest = bytes.get(begin..).unwrap_or_default();
        let rest = &rest[..rest.len().min(segment.len())];
        segment[..rest.len()].copy_from_slice(rest);
        let segments = communicator.gather(0, &segment)?;
        for (all, segment) in all.iter_mut().zip(segments.chunks_exact(segment.len())) {
            all.extend_from_slice(segment);
        }
    }
    for (all, length) in all.iter_mut().zip(lengths) {
        all.truncate(length);
    }
    Ok(all)
}
