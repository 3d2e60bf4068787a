//! What a GPU reserves when a thread of its own makes each batch, as a data loader may: with pages for each
//! thread, CubeCL's default, and with `max_streams = 1`.

use anyhow::{Context, Result, ensure};
use benchmarks::device::configure;
use burn_0_22::tensor::{Device, Distribution, Tensor};
use std::process::Command;
use std::{env, thread};

const MIB: u64 = 1 << 20;

fn main() -> Result<()> {
    if let Some(streams) = env::args().nth(1) {
        return reserved(streams.parse()?);
    }
    // CubeCL reads its settings once in a process.
    for streams in ["128", "1"] {
        let status = Command::new(env::current_exe()?).arg(streams).status()?;
        ensure!(status.success(), "max_streams = {streams} failed");
    }
    Ok(())
}

/// Prints what is reserved after each of some batches.
fn reserved(max_streams: u8) -> Result<()> {
    configure(|config| config.streaming.max_streams = max_streams)?;
    let device = Device::wgpu(Default::default());
    let weight = Tensor::<2>::ones([1024, 1024], &device);
    print!("max_streams = {max_streams}, MiB reserved after each batch:");
    for _ in 0..8 {
        let made = device.clone();
        let batch = || Tensor::<2>::random([1024, 1024], Distribution::Default, &made);
        let batch = thread::scope(|scope| scope.spawn(batch).join())
            .map_err(|_| anyhow::anyhow!("a batch was not made"))?;
        let sum = batch.matmul(weight.clone()).sum().into_scalar::<f32>();
        ensure!(sum.is_finite(), "the device has computed {sum}");
        let usage = device.memory_pool_usage().context("a GPU tells")?;
        print!(" {}", usage.bytes_reserved / MIB);
    }
    println!();
    Ok(())
}
