//! Finds what this machine has of a request.

use crate::plan::{Available, Request};
use crate::pytorch::PyTorch;
use crate::results::LeftOut;
use anyhow::{Error, Result, ensure};
use vit_0_21::backend;
use vit_0_21::config::BackendKind;

/// Looks for the backends and for PyTorch.
///
/// # Errors
///
/// The request names a backend that this build or this machine does not have.
pub fn find(request: &Request) -> Result<(Available, Option<PyTorch>)> {
    let mut missing = Vec::new();
    let backends = backends(request, &mut missing)?;
    let pytorch = pytorch(request);
    let available = Available {
        backends,
        missing,
        pytorch: match &pytorch {
            Ok(pytorch) => Ok(pytorch.versions.clone()),
            Err(why) => Err(why.clone()),
        },
    };
    Ok((available, pytorch.ok()))
}

/// The GPU backends of this machine, else the CPU backend.
fn backends(request: &Request, missing: &mut Vec<LeftOut>) -> Result<Vec<BackendKind>> {
    if !request.backends.is_empty() {
        for backend in &request.backends {
            require(*backend)?;
        }
        return Ok(request.backends.clone());
    }
    let mut found = Vec::new();
    for backend in [BackendKind::Cuda, BackendKind::Wgpu] {
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
        found.push(BackendKind::first());
    }
    Ok(found)
}

/// An error in one line if this build or this machine does not have the backend.
fn require(backend: BackendKind) -> Result<()> {
    // `vit-0-21` may have it all the same, where another package of the build has asked for it.
    let is_here = match backend {
        BackendKind::Wgpu => cfg!(feature = "wgpu"),
        BackendKind::Cuda => cfg!(feature = "cuda"),
        BackendKind::Flex | BackendKind::NdArray => true,
    };
    ensure!(
        is_here,
        "the backend {backend} is not compiled in: build with `cargo run --release -p benchmarks \
         --features {backend}`"
    );
    backend::require(backend).map_err(in_this_package)
}

/// An error of `vit-0-21` that names its own package, naming this package instead.
fn in_this_package(error: Error) -> Error {
    Error::msg(format!("{error:#}").replace("-p vit-0-21", "-p benchmarks"))
}

#[cfg(feature = "wgpu")]
fn has_gpu_adapter() -> bool {
    let mut adapters = vit_0_21::device::adapters().into_iter();
    adapters.any(|adapter| !adapter.is_software)
}

#[cfg(not(feature = "wgpu"))]
fn has_gpu_adapter() -> bool {
    false
}

/// PyTorch, or why it is not measured.
fn pytorch(request: &Request) -> Result<PyTorch, String> {
    let Some(python) = &request.python else {
        return Err("--no-pytorch".into());
    };
    PyTorch::find(python).map_err(|error| {
        let python = python.display();
        format!("{python} cannot run it ({error:#}); --python names one that has PyTorch")
    })
}
