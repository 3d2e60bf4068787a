//! Where devices meet: the tensors that they bring first are reduced, then those that they bring
//! second.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Condvar, LazyLock, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use burn::{
    backend::{Flex, flex::FlexTensor},
    tensor::{
        backend::{DeviceId, distributed::ReduceOperation},
        ops::FloatTensorOps,
    },
};

/// How long a device is awaited.
const PATIENCE: Duration = Duration::from_secs(20);

struct Brought {
    tensor: FlexTensor,
    result: Arc<OnceLock<FlexTensor>>,
}

/// What each device has brought for devices that do not all have come, by the devices of its group.
type Groups = HashMap<Vec<DeviceId>, HashMap<DeviceId, VecDeque<Brought>>>;

static GROUPS: LazyLock<Mutex<Groups>> = LazyLock::new(Mutex::default);
static REDUCED: Condvar = Condvar::new();

/// Brings a tensor. What comes back is filled when the last device has brought its own.
pub(crate) fn bring(
    tensor: FlexTensor,
    device: DeviceId,
    op: ReduceOperation,
    mut device_ids: Vec<DeviceId>,
) -> Arc<OnceLock<FlexTensor>> {
    device_ids.sort();
    assert!(device_ids.contains(&device), "{device} is not in its group");
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    let group = groups.entry(device_ids.clone()).or_default();
    let result = Arc::new(OnceLock::new());
    let brought = Brought {
        tensor,
        result: result.clone(),
    };
    group.entry(device).or_default().push_back(brought);
    let has_come = |id| group.get(id).is_some_and(|queue| !queue.is_empty());
    if device_ids.iter().all(has_come) {
        let first = |id| group.get_mut(id)?.pop_front();
        let brought: Vec<_> = device_ids.iter().filter_map(first).collect();
        let tensors = brought.iter().map(|brought| brought.tensor.clone());
        let sum = tensors.reduce(Flex::float_add).unwrap();
        let reduced = match op {
            ReduceOperation::Sum => sum,
            ReduceOperation::Mean => Flex::float_div_scalar(sum, (device_ids.len() as f32).into()),
        };
        for brought in brought {
            brought.result.set(reduced.clone()).unwrap();
        }
        REDUCED.notify_all();
    }
    result
}

/// Waits until everything that the device has brought is reduced.
pub(crate) fn wait(device: DeviceId) {
    let is_awaiting = |groups: &mut Groups| {
        let mut queues = groups.values().filter_map(|group| group.get(&device));
        queues.any(|queue| !queue.is_empty())
    };
    let groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = REDUCED.wait_timeout_while(groups, PATIENCE, is_awaiting);
    let (groups, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
    drop(groups);
    assert!(!timeout.timed_out(), "{device} waits for the others");
}
