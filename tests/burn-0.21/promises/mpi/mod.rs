//! Replicas in several processes: what one process would have that adds their gradients up in the
//! order of the ranks and divides.

mod failure;
mod memory;
mod reference;
mod sharding;
mod weights;
