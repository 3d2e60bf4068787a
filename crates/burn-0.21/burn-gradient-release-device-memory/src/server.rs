//! The server around a server: where memory is allocated.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cubecl::{
    CubeCount, ExecutionMode, MemoryUsage,
    bytes::Bytes,
    config::{CubeClRuntimeConfig, RuntimeConfig},
    device::{DeviceId, DeviceService, DeviceServiceStage, ServerUtilitiesHandle},
    future::DynFut,
    ir::ElemType,
    profile::ProfileDuration,
    server::{
        Binding, ComputeServer, CopyDescriptor, Handle, KernelArguments, MemoryLayout,
        MemoryLayoutDescriptor, MemoryLayoutPolicy, ProfileError, ProfilingToken, ReduceOperation,
        ServerCommunication, ServerError, ServerUtilities,
    },
    stream_id::StreamId,
};
use cubecl_runtime::{
    logging::ServerLogger,
    memory_management::{ManagedMemoryHandle, MemoryAllocationMode},
    storage::{ComputeStorage, ManagedResource},
    stream::stream_index,
};

use crate::meter::{Meter, Usage};

/// A server of cubecl that has its memory read after every allocation that may have made a peak.
///
/// All memory of tensors is allocated by [`initialize_memory`](ComputeServer::initialize_memory),
/// in kernels, in fused blocks and in autotuning alike.
#[derive(Debug)]
pub struct MeteredServer<S: ComputeServer> {
    server: S,
    utilities: Arc<ServerUtilities<Self>>,
    pools: Pools,
}

/// One stream of every memory pool in use: cubecl accounts for each pool apart.
#[derive(Debug)]
struct Pools {
    streams: Vec<StreamId>,
    max_streams: usize,
}

impl Pools {
    fn new() -> Self {
        Self {
            streams: Vec::new(),
            max_streams: CubeClRuntimeConfig::get().streaming.max_streams.into(),
        }
    }

    fn note(&mut self, stream: StreamId) {
        let index = |stream| stream_index(stream, self.max_streams);
        if !self
            .streams
            .iter()
            .any(|known| index(known) == index(&stream))
        {
            self.streams.push(stream);
        }
    }
}

impl<S: ComputeServer> MeteredServer<S> {
    fn new(server: S) -> Self {
        let utilities = ComputeServer::utilities(&server);
        Self {
            utilities: Arc::new(ServerUtilities::new(
                utilities.properties.clone(),
                utilities.logger.clone(),
                Info {
                    utilities: utilities.clone(),
                    meter: Arc::default(),
                },
                Layout(utilities),
            )),
            server,
            pools: Pools::new(),
        }
    }

    /// Reads all pools together. A failed device has nothing to say: whoever asks it next, as the
    /// training does, gets the error.
    fn read(&mut self) -> Result<(), ServerError> {
        let mut total = Usage::default();
        for stream in &self.pools.streams {
            let usage = self.server.memory_usage(*stream)?;
            total.in_use += usage.bytes_in_use;
            total.reserved += usage.bytes_reserved;
            total.padding += usage.bytes_padding;
            total.allocations += usage.number_allocs;
        }
        self.utilities.info.meter().read(total);
        Ok(())
    }
}

/// The metered runtime's access to its server.
#[derive(Debug)]
pub struct Info<S: ComputeServer> {
    utilities: Arc<ServerUtilities<S>>,
    meter: Arc<Mutex<Meter>>,
}

impl<S: ComputeServer> Info<S> {
    pub(crate) fn of_the_server(&self) -> &S::Info {
        &self.utilities.info
    }

    pub(crate) fn meter(&self) -> MutexGuard<'_, Meter> {
        // Nothing panics while it holds the meter.
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The layout of the server within.
#[derive(Debug)]
pub struct Layout<S: ComputeServer>(Arc<ServerUtilities<S>>);

impl<S: ComputeServer> MemoryLayoutPolicy for Layout<S> {
    fn apply(
        &self,
        stream_id: StreamId,
        descriptors: &[MemoryLayoutDescriptor],
    ) -> (Handle, Vec<MemoryLayout>) {
        self.0.layout_policy.apply(stream_id, descriptors)
    }
}

impl<S: ComputeServer> DeviceService for MeteredServer<S> {
    fn init(device_id: DeviceId) -> Self {
        Self::new(S::init(device_id))
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }

    fn stage() -> DeviceServiceStage {
        S::stage()
    }
}

impl<S: ComputeServer> ComputeServer for MeteredServer<S> {
    type Kernel = S::Kernel;
    type Info = Info<S>;
    type MemoryLayoutPolicy = Layout<S>;
    type Storage = S::Storage;

    fn initialize_memory(&mut self, memory: ManagedMemoryHandle, size: u64, stream_id: StreamId) {
        self.server.initialize_memory(memory, size, stream_id);
        self.pools.note(stream_id);
        if self.utilities.info.meter().allocated(size) {
            let _ = self.read();
        }
    }

    fn memory_usage(&mut self, stream_id: StreamId) -> Result<MemoryUsage, ServerError> {
        self.read()?;
        self.server.memory_usage(stream_id)
    }

    fn memory_cleanup(&mut self, stream_id: StreamId) {
        // The last moment to read the reserved bytes.
        let _ = self.read();
        self.server.memory_cleanup(stream_id);
    }

    fn staging(&mut self, sizes: &[usize], stream_id: StreamId) -> Result<Vec<Bytes>, ServerError> {
        self.server.staging(sizes, stream_id)
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.server.logger()
    }

    fn utilities(&self) -> Arc<ServerUtilities<Self>> {
        self.utilities.clone()
    }

    fn read(
        &mut self,
        descriptors: Vec<CopyDescriptor>,
        stream_id: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        self.server.read(descriptors, stream_id)
    }

    fn write(&mut self, descriptors: Vec<(CopyDescriptor, Bytes)>, stream_id: StreamId) {
        self.server.write(descriptors, stream_id);
    }

    fn sync(&mut self, stream_id: StreamId) -> DynFut<Result<(), ServerError>> {
        self.server.sync(stream_id)
    }

    fn get_resource(
        &mut self,
        binding: Binding,
        stream_id: StreamId,
    ) -> Result<ManagedResource<<Self::Storage as ComputeStorage>::Resource>, ServerError> {
        self.server.get_resource(binding, stream_id)
    }

    #[allow(unsafe_code)] // The trait asks for it.
    unsafe fn launch(
        &mut self,
        kernel: Self::Kernel,
        count: CubeCount,
        bindings: KernelArguments,
        kind: ExecutionMode,
        stream_id: StreamId,
    ) {
        // SAFETY: the caller's promise, handed on with the same arguments.
        unsafe { self.server.launch(kernel, count, bindings, kind, stream_id) }
    }

    fn flush(&mut self, stream_id: StreamId) -> Result<(), ServerError> {
        self.server.flush(stream_id)
    }

    fn start_profile(&mut self, stream_id: StreamId) -> Result<ProfilingToken, ServerError> {
        self.server.start_profile(stream_id)
    }

    fn end_profile(
        &mut self,
        stream_id: StreamId,
        token: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        self.server.end_profile(stream_id, token)
    }

    fn allocation_mode(&mut self, mode: MemoryAllocationMode, stream_id: StreamId) {
        self.server.allocation_mode(mode, stream_id);
    }
}

impl<S: ComputeServer> ServerCommunication for MeteredServer<S> {
    const SERVER_COMM_ENABLED: bool = S::SERVER_COMM_ENABLED;

    fn sync_collective(&mut self, stream_id: StreamId) -> Result<(), ServerError> {
        self.server.sync_collective(stream_id)
    }

    fn comm_init(&mut self, device_ids: Vec<DeviceId>) -> Result<(), ServerError> {
        self.server.comm_init(device_ids)
    }

    fn all_reduce(
        &mut self,
        src: Binding,
        dst: Binding,
        dtype: ElemType,
        stream_id: StreamId,
        op: ReduceOperation,
        device_ids: Vec<DeviceId>,
    ) -> Result<(), ServerError> {
        self.server
            .all_reduce(src, dst, dtype, stream_id, op, device_ids)
    }

    fn send(
        &mut self,
        desc: CopyDescriptor,
        dtype: ElemType,
        stream_id: StreamId,
        device_id_dst: DeviceId,
    ) -> Result<(), ServerError> {
        self.server.send(desc, dtype, stream_id, device_id_dst)
    }

    fn recv(
        &mut self,
        handle: Handle,
        dtype: ElemType,
        stream_id: StreamId,
        device_id_src: DeviceId,
    ) -> Result<(), ServerError> {
        self.server.recv(handle, dtype, stream_id, device_id_src)
    }
}
