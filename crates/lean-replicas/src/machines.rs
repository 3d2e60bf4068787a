//! Exchanges within each machine, then between machines.

use crate::communicator::{CommunicationError, Communicator};

/// Machines of as many processes each, one machine after the other in the order of the ranks.
///
/// What every process brings for every other goes to the neighbours on its machine first, and from
/// each of them to the process in its place on the other machines, in one message for all of that
/// machine. With `m` machines of `n` processes that makes `n - 1` and `m - 1` messages of each
/// process in place of `m * n - 1`. Its bytes travel twice, once of them within the machine.
#[derive(Debug)]
pub(crate) struct Machines<C> {
    pub(crate) all: C,
    /// The processes of this machine.
    pub(crate) within: C,
    /// The processes in the place of this one on each machine.
    pub(crate) between: C,
}

impl<C: Communicator> Machines<C> {
    /// Blocks by machine and place, from blocks by place and machine.
    fn by_machine(&self, blocks: &[u8]) -> Vec<u8> {
        transposed(blocks, self.within.size(), self.between.size())
    }

    /// Blocks by place and machine, from blocks by machine and place.
    fn by_place(&self, blocks: &[u8]) -> Vec<u8> {
        transposed(blocks, self.between.size(), self.within.size())
    }
}

/// Blocks of equal size by column and row, from as many by row and column.
fn transposed(blocks: &[u8], rows: usize, columns: usize) -> Vec<u8> {
    let block = blocks.len() / (rows * columns);
    let mut transposed = Vec::with_capacity(blocks.len());
    for column in 0..columns {
        for row in 0..rows {
            let at = (row * columns + column) * block;
            transposed.extend_from_slice(&blocks[at..][..block]);
        }
    }
    transposed
}

impl<C: Communicator> Communicator for Machines<C> {
    fn rank(&self) -> usize {
        self.all.rank()
    }

    fn size(&self) -> usize {
        self.all.size()
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        let of_my_place = self.between.all_gather(bytes)?;
        let of_all = self.within.all_gather(&of_my_place)?;
        Ok(self.by_machine(&of_all))
    }

    fn gather(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        self.all.gather(root, bytes)
    }

    fn all_to_all(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        let for_my_place = self.within.all_to_all(&self.by_place(bytes))?;
        self.between.all_to_all(&self.by_machine(&for_my_place))
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError> {
        self.all.broadcast(root, bytes)
    }

    fn abort(&self) {
        for communicator in [&self.all, &self.within, &self.between] {
            communicator.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{
        Threads,
        mean::{To, mean},
    };

    /// So many machines, by rank.
    fn machines(count: usize, processes: usize) -> Vec<Machines<Threads>> {
        let mut within: Vec<_> = (0..count).map(|_| Threads::new(processes)).collect();
        let mut between: Vec<_> = (0..processes).map(|_| Threads::new(count)).collect();
        let mut all = Threads::new(count * processes);
        let last_first = all.drain(..).enumerate().rev();
        let mut machines: Vec<_> = last_first
            .map(|(rank, all)| Machines {
                all,
                within: within[rank / processes].pop().expect("one for each"),
                between: between[rank % processes].pop().expect("one for each"),
            })
            .collect();
        machines.reverse();
        machines
    }

    /// The result of each process, by rank.
    fn run<C: Communicator + Send, T: Send>(
        processes: Vec<C>,
        work: impl Fn(&C) -> T + Sync,
    ) -> Vec<T> {
        thread::scope(|scope| {
            let threads: Vec<_> = processes
                .into_iter()
                .map(|process| {
                    let work = &work;
                    scope.spawn(move || work(&process))
                })
                .collect();
            let done = threads.into_iter().map(|thread| thread.join());
            done.map(|done| done.expect("no panic")).collect()
        })
    }

    /// Each exchange, with other bytes of each process for each.
    fn exchanges(communicator: &dyn Communicator) -> [Vec<u8>; 4] {
        let (rank, size) = (communicator.rank() as u8, communicator.size() as u8);
        let for_each: Vec<u8> = (0..size)
            .flat_map(|to| [rank, to, rank.wrapping_mul(31) ^ to])
            .collect();
        [
            communicator.all_to_all(&for_each).unwrap(),
            communicator.all_gather(&[rank, 255 - rank]).unwrap(),
            communicator.gather(1, &[rank]).unwrap(),
            communicator.all_gather(&[]).unwrap(),
        ]
    }

    #[test]
    fn everything_arrives_where_it_would_without_machines() {
        for (count, processes) in [(2, 2), (3, 2), (2, 3), (4, 4)] {
            let flat = run(Threads::new(count * processes), |one| exchanges(one));
            let found = run(machines(count, processes), |one| exchanges(one));
            assert_eq!(found, flat, "{count} machines of {processes}");
        }
    }

    #[test]
    fn means_have_the_same_bits() {
        let of = |rank: usize| -> Vec<f32> {
            let number = |at: usize| {
                let spread = [1e8, 1.0, 1e-8, -1e8, 3e38, 1e-40][(at + rank) % 6];
                spread * (1.0 + (at * 7 + rank * 13) as f32 / 97.0)
            };
            (0..1001).map(number).collect()
        };
        let means = |communicator: &dyn Communicator| {
            let mut values = of(communicator.rank());
            mean(communicator, &mut values, To::All).unwrap();
            values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let flat = run(Threads::new(6), |one| means(one));
        assert_eq!(run(machines(3, 2), |one| means(one)), flat);
        assert_eq!(run(machines(2, 3), |one| means(one)), flat);
    }
}
