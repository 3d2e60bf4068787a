//! Carries bytes between replicas.

use std::error::Error;

/// Why bytes could not be carried.
pub type CommunicationError = Box<dyn Error + Send + Sync>;

/// The group of processes that train replicas of a model, as one of them sees it.
///
/// Every method is called by all of them, in the same order and with as many bytes, and returns
/// once this process has what it asks for.
pub trait Communicator {
    /// The number of this process, from 0.
    fn rank(&self) -> usize;

    /// Number of processes.
    fn size(&self) -> usize;

    /// The bytes of all processes, in the order of their ranks.
    ///
    /// # Errors
    ///
    /// If bytes cannot be carried.
    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError>;

    /// The bytes of all processes, in the order of their ranks, at the process `root`; nothing at
    /// the others.
    ///
    /// # Errors
    ///
    /// If bytes cannot be carried.
    fn gather(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError>;

    /// Of `bytes`, which is as many equal parts as there are processes, each process gets the part
    /// with the number of its rank: those of all processes, in the order of their ranks.
    ///
    /// # Errors
    ///
    /// If bytes cannot be carried.
    fn all_to_all(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError>;

    /// The bytes of the process `root` in the place of those of the others.
    ///
    /// # Errors
    ///
    /// If bytes cannot be carried.
    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError>;

    /// Ends all processes at once.
    fn abort(&self);
}

/// A process without others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        Ok(bytes.to_vec())
    }

    fn gather(&self, _root: usize, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        Ok(bytes.to_vec())
    }

    fn all_to_all(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
        Ok(bytes.to_vec())
    }

    fn broadcast(&self, _root: usize, _bytes: &mut [u8]) -> Result<(), CommunicationError> {
        Ok(())
    }

    fn abort(&self) {}
}
