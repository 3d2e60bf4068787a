//! Finds what this machine has of what was asked for.

use crate::device;
use crate::options::Options;
use crate::plan::Available;
use crate::pytorch::PyTorch;
use crate::results::LeftOut;
use anyhow::{Result, ensure};
use vit_inputs::BackendKind;

/// Looks for the backends and for PyTorch.
///
/// # Errors
///
/// The options name a backend that this build or this machine does not have.
pub fn find(options: &Options) -> Result<(Available, Option<PyTorch>)> {
    let mut missing = Vec::new();
    let backends = backends(&options.backend, &mut missing)?;
    let pytorch = pytorch(options);
    let versions = pytorch.as_ref().map(|pytorch| pytorch.versions.clone());
    let available = Available {
        backends,
        missing,
        fuses: cfg!(feature = "fusion"),
        pytorch: versions.map_err(String::clone),
    };
    Ok((available, pytorch.ok()))
}

/// Those that were asked for; else the GPU backends of this machine, or the CPU backend.
fn backends(wanted: &[BackendKind], missing: &mut Vec<LeftOut>) -> Result<Vec<BackendKind>> {
    if !wanted.is_empty() {
        wanted.iter().try_for_each(|backend| require(*backend))?;
        return Ok(wanted.to_vec());
    }
    let mut found = Vec::new();
    for backend in [BackendKind::Cuda, BackendKind::Wgpu] {
        let has_gpu_adapter = || device::adapters().iter().any(|it| !it.is_software);
        let refused = match require(backend) {
            Ok(()) if backend == BackendKind::Wgpu && !has_gpu_adapter() => {
                "its only adapter computes on the CPU; --backend wgpu measures it all the same"
                    .into()
            }
            Ok(()) => {
                found.push(backend);
                continue;
            }
            Err(error) => error.to_string(),
        };
        missing.push(LeftOut::new(backend.to_string(), refused));
    }
    if found.is_empty() {
        found.push(match (cfg!(feature = "flex"), cfg!(feature = "wgpu")) {
            (true, _) => BackendKind::Flex,
            (_, true) => BackendKind::Wgpu,
            _ => BackendKind::Cuda,
        });
    }
    Ok(found)
}

/// An error in one line if this build or this machine does not have the backend.
fn require(backend: BackendKind) -> Result<()> {
    let is_here = match backend {
        BackendKind::Flex => cfg!(feature = "flex"),
        BackendKind::Wgpu => cfg!(feature = "wgpu"),
        BackendKind::Cuda => cfg!(feature = "cuda"),
    };
    ensure!(
        is_here,
        "the backend {backend} is not compiled in: build with `cargo run --release -p benchmarks \
         --features {backend}`"
    );
    device::require(backend)
}

/// PyTorch, or why it is not measured.
fn pytorch(options: &Options) -> Result<PyTorch, String> {
    if options.no_pytorch {
        return Err("--no-pytorch".into());
    }
    PyTorch::find(&options.python).map_err(|error| {
        let python = options.python.display();
        format!("{python} cannot run it ({error:#}); --python names one that has PyTorch")
    })
}
