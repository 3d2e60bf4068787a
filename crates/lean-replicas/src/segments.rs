//! Bytes of any length, in segments that MPI can count.

use crate::communicator::{CommunicationError, Communicator};

/// How many bytes one process receives at once, however many send them: it holds them beside what
/// it has, and MPI counts them in 32 bits with a sign.
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
    let size = communicator.size();
    let from_each = (SEGMENT / size).max(1);
    let mut all = vec![Vec::new(); size];
    for begin in (0..longest).step_by(from_each) {
        let mut segment = vec![0; from_each.min(longest - begin)];
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::Threads;

    /// The first of many processes, which all bring the same.
    struct FirstOf {
        size: usize,
        received_at_once: Cell<usize>,
    }

    impl FirstOf {
        fn new(size: usize) -> Self {
            Self {
                size,
                received_at_once: Cell::new(0),
            }
        }
    }

    impl Communicator for FirstOf {
        fn rank(&self) -> usize {
            0
        }

        fn size(&self) -> usize {
            self.size
        }

        fn all_gather(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
            Ok(bytes.repeat(self.size))
        }

        fn gather(&self, _root: usize, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
            let received = bytes.len() * self.size;
            let most = self.received_at_once.get().max(received);
            self.received_at_once.set(most);
            // What is received is not looked at.
            Ok(Vec::new())
        }

        fn all_to_all(&self, _bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
            unreachable!("gathers")
        }

        fn broadcast(&self, _root: usize, _bytes: &mut [u8]) -> Result<(), CommunicationError> {
            unreachable!("gathers")
        }

        fn abort(&self) {}
    }

    #[test]
    fn the_first_process_receives_no_more_at_once_than_a_segment() {
        let bytes = vec![0; SEGMENT];
        for size in [1, 3, 32, 1000] {
            let first = FirstOf::new(size);
            gather(&first, &bytes).unwrap();
            let received = first.received_at_once.get();
            assert!(received <= SEGMENT, "{size} processes: {received} bytes");
            assert!(received > SEGMENT / 2, "{size} processes: {received} bytes");
        }
    }

    #[test]
    fn bytes_of_several_segments_are_put_together() {
        let of = |rank: usize| -> Vec<u8> {
            let length = SEGMENT / 2 + rank * 1000;
            (0..length).map(|at| (at % 251 + rank) as u8).collect()
        };
        let gathered = Threads::run(3, |replicas| {
            let bytes = of(replicas.rank());
            let pending = replicas.begin("bytes".into(), move |communicator| {
                gather(communicator, &bytes)
            });
            pending.wait().unwrap()
        });
        assert!(gathered[0] == [0, 1, 2].map(of));
        assert!(gathered[1].iter().all(Vec::is_empty));
    }
}
