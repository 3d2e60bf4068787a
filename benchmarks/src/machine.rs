//! The machine and the versions behind the numbers.

use crate::device;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::env::consts;
use std::iter;
use std::process::Command;
use std::thread;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// Names and values.
pub type Facts = BTreeMap<&'static str, String>;

/// Facts in one line.
pub fn describe(facts: &Facts) -> String {
    let facts: Vec<_> = facts
        .iter()
        .map(|(name, it)| format!("{name} {it}"))
        .collect();
    facts.join(", ")
}

/// This machine. Its GPUs are those that NVIDIA's driver lists, and the adapters that wgpu lists, in a
/// build that has wgpu.
pub fn machine() -> Facts {
    let wanted = RefreshKind::nothing()
        .with_cpu(CpuRefreshKind::nothing())
        .with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(wanted);
    let processor = system.cpus().first().map_or("", |cpu| cpu.brand().trim());
    let gib = system.total_memory() as f64 / f64::from(1 << 30);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let adapters = device::adapters().into_iter().map(|adapter| adapter.name);
    let mut facts = Facts::from([
        ("adapters", adapters.collect::<Vec<_>>().join(", ")),
        ("gpus", nvidia_gpus().join(", ")),
        ("memory", format!("{gib:.0} GiB")),
        ("processor", processor.into()),
        ("system", format!("{} {}", consts::OS, consts::ARCH)),
        ("threads", threads.to_string()),
    ]);
    facts.retain(|_, value| !value.is_empty());
    facts
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

/// The versions of what this program is made of, and of PyTorch if it is measured.
pub fn versions(pytorch: Option<&TorchVersions>) -> Facts {
    let is_debug = cfg!(debug_assertions);
    let mut facts = Facts::from([
        ("gradient_release", env!("CARGO_PKG_VERSION").into()),
        ("burn", locked("burn", "0.21.")),
        ("burn_0_22", locked("burn", "0.22.")),
        ("cubecl", locked("cubecl", "")),
        ("compiler", env!("BENCHMARKS_RUSTC").into()),
        ("profile", if is_debug { "debug" } else { "release" }.into()),
    ]);
    if let Some(versions) = pytorch.cloned() {
        facts.extend([("pytorch", versions.torch), ("python", versions.python)]);
        facts.extend(versions.optimi.map(|version| ("optimi", version)));
        facts.extend(versions.torchao.map(|version| ("torchao", version)));
        facts.extend(versions.flashoptim.map(|version| ("flashoptim", version)));
    }
    facts
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
    /// FlashOptim, if it is installed.
    pub flashoptim: Option<String>,
    /// CUDA, if PyTorch sees a GPU.
    pub cuda: Option<String>,
    /// Name of that GPU.
    pub gpu: Option<String>,
    /// Threads on the CPU.
    pub threads: usize,
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
