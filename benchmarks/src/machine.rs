//! The machine and the versions behind the numbers.

use serde::{Deserialize, Serialize};
use std::env::consts;
use std::iter;
use std::process::Command;
use std::thread;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// The machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Operating system and processor family.
    pub system: String,
    /// Model name of the processor.
    pub processor: Option<String>,
    /// Hardware threads that this process may use.
    pub threads: usize,
    /// Bytes of main memory.
    pub memory_bytes: u64,
    /// GPUs that NVIDIA's driver lists: name, driver, memory.
    pub gpus: Vec<String>,
    /// Adapters that wgpu lists, in a build that has wgpu.
    pub adapters: Vec<String>,
}

impl Machine {
    /// Describes this machine.
    pub fn this() -> Self {
        let wanted = RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing())
            .with_memory(MemoryRefreshKind::nothing().with_ram());
        let system = System::new_with_specifics(wanted);
        let processor = system.cpus().first().map(|cpu| cpu.brand().trim());
        Self {
            system: format!("{} {}", consts::OS, consts::ARCH),
            processor: processor.filter(|name| !name.is_empty()).map(String::from),
            threads: thread::available_parallelism().map_or(1, Into::into),
            memory_bytes: system.total_memory(),
            gpus: nvidia_gpus(),
            adapters: adapters(),
        }
    }

    /// The machine in one line.
    pub fn describe(&self) -> String {
        let mut parts = self.gpus.clone();
        let adapters = self.adapters.iter();
        parts.extend(adapters.map(|name| format!("wgpu adapter {name}")));
        parts.extend(self.processor.clone());
        parts.push(format!("{} threads", self.threads));
        let gib = self.memory_bytes as f64 / f64::from(1 << 30);
        parts.push(format!("{gib:.0} GiB"));
        parts.push(self.system.clone());
        parts.join(", ")
    }
}

fn nvidia_gpus() -> Vec<String> {
    let query = "--query-gpu=name,driver_version,memory.total";
    let output = Command::new("nvidia-smi")
        .args([query, "--format=csv,noheader"])
        .output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| line.trim().into())
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(feature = "wgpu")]
fn adapters() -> Vec<String> {
    let adapters = vit_0_21::device::adapters().into_iter();
    adapters.map(|adapter| adapter.name).collect()
}

#[cfg(not(feature = "wgpu"))]
fn adapters() -> Vec<String> {
    Vec::new()
}

/// Versions of the libraries.
#[derive(Clone, Debug, Serialize)]
pub struct Versions {
    /// This workspace.
    pub gradient_release: String,
    /// Burn 0.21, as in `Cargo.lock`.
    pub burn: String,
    /// Burn 0.22, as in `Cargo.lock`.
    pub burn_0_22: String,
    /// cubecl, below Burn's GPU backends.
    pub cubecl: String,
    /// The compiler.
    pub rustc: String,
    /// `release` or `debug`.
    pub profile: String,
    /// PyTorch and what is around it, if it is measured.
    pub pytorch: Option<TorchVersions>,
}

/// Versions of a Python with PyTorch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TorchVersions {
    /// Python.
    pub python: String,
    /// PyTorch.
    pub torch: String,
    /// optimi, if it is installed.
    pub optimi: Option<String>,
    /// torchao, if it is installed.
    pub torchao: Option<String>,
    /// CUDA, if PyTorch sees a GPU.
    pub cuda: Option<String>,
    /// Name of that GPU.
    pub gpu: Option<String>,
    /// Threads on the CPU.
    pub threads: usize,
}

impl Versions {
    /// Those of this program.
    pub fn this(pytorch: Option<&TorchVersions>) -> Self {
        let is_debug = cfg!(debug_assertions);
        Self {
            gradient_release: env!("CARGO_PKG_VERSION").into(),
            burn: locked("burn", "0.21."),
            burn_0_22: locked("burn", "0.22."),
            cubecl: locked("cubecl", ""),
            rustc: env!("BENCHMARKS_RUSTC").into(),
            profile: if is_debug { "debug" } else { "release" }.into(),
            pytorch: pytorch.cloned(),
        }
    }

    /// The versions in one line.
    pub fn describe(&self) -> String {
        let mut text = format!(
            "Burn {} and {}, cubecl {}, {}, {} build",
            self.burn, self.burn_0_22, self.cubecl, self.rustc, self.profile
        );
        if let Some(pytorch) = &self.pytorch {
            text += &format!("; PyTorch {}, Python {}", pytorch.torch, pytorch.python);
            for (name, version) in [("optimi", &pytorch.optimi), ("torchao", &pytorch.torchao)] {
                if let Some(version) = version {
                    text += &format!(", {name} {version}");
                }
            }
        }
        text
    }
}

/// The version of a package in `Cargo.lock` that begins with `start`.
fn locked(package: &str, start: &str) -> String {
    let name = format!("name = \"{package}\"");
    let mut lines = include_str!("../../Cargo.lock").lines();
    let versions = iter::from_fn(|| {
        lines.find(|line| *line == name)?;
        lines.next()?.split('"').nth(1)
    });
    let version = { versions }.find(|version| version.starts_with(start));
    version.unwrap_or("unknown").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locked_versions_of_burn_are_known() {
        for start in ["0.21.", "0.22."] {
            assert!(locked("burn", start).starts_with(start));
        }
        assert_eq!(locked("burn", "0.20."), "unknown");
        assert_eq!(locked("no such package", ""), "unknown");
    }
}
