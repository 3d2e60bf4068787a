/// The methods of `Backend` but for `name`, which a decorator has of its own: each forwarded to the
/// backend below. [`names!`](crate::names) imports the names it uses.
#[macro_export]
macro_rules! backend_methods {
    ($below:ty) => {
        fn ad_enabled(device: &Self::Device) -> bool {
            <$below>::ad_enabled(device)
        }

        fn seed(device: &Self::Device, seed: u64) {
            <$below>::seed(device, seed)
        }

        fn sync(device: &Self::Device) -> Result<(), ExecutionError> {
            <$below>::sync(device)
        }

        fn memory_persistent_allocations<
            Output: Send,
            Input: Send,
            Func: Fn(Input) -> Output + Send,
        >(
            device: &Self::Device,
            input: Input,
            func: Func,
        ) -> Output {
            <$below>::memory_persistent_allocations(device, input, func)
        }

        fn memory_cleanup(device: &Self::Device) {
            <$below>::memory_cleanup(device)
        }

        fn staging<'a, Iter>(data: Iter, device: &Self::Device)
        where
            Iter: Iterator<Item = &'a mut TensorData>,
        {
            <$below>::staging(data, device)
        }

        fn supports_dtype(device: &Self::Device, dtype: DType) -> bool {
            <$below>::supports_dtype(device, dtype)
        }

        fn dtype_usage(device: &Self::Device, dtype: DType) -> DTypeUsageSet {
            <$below>::dtype_usage(device, dtype)
        }

        fn device_count(type_id: u16) -> usize {
            <$below>::device_count(type_id)
        }
    };
}
