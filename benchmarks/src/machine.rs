//! Reads the machine and the versions behind the numbers.

use crate::results::{Machine, TorchVersions, Versions};
use std::env::consts;
use std::iter;
use std::process::Command;
use std::thread;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// Describes this machine.
pub fn this() -> Machine {
    let wanted = RefreshKind::nothing()
        .with_cpu(CpuRefreshKind::nothing())
        .with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(wanted);
    let processor = system.cpus().first().map(|cpu| cpu.brand().trim());
    let memory_bytes = system.total_memory();
    Machine {
        system: format!("{} {}", consts::OS, consts::ARCH),
        processor: processor.filter(|name| !name.is_empty()).map(String::from),
        threads: thread::available_parallelism().map_or(1, Into::into),
        memory_bytes: (memory_bytes > 0).then_some(memory_bytes),
        gpus: nvidia_gpus(),
        adapters: adapters(),
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

/// The versions of this program's libraries, and of PyTorch if it is measured.
pub fn versions(pytorch: Option<&TorchVersions>) -> Versions {
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    Versions {
        gradient_release: env!("CARGO_PKG_VERSION").into(),
        burn: locked("burn", "0.21."),
        burn_0_22: locked("burn", "0.22."),
        cubecl: locked("cubecl", ""),
        rustc: env!("BENCHMARKS_RUSTC").into(),
        profile: profile.into(),
        pytorch: pytorch.cloned(),
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

    #[cfg(target_os = "linux")]
    #[test]
    fn the_machine_is_as_linux_describes_it() {
        let field = |file: &str, name: &str| {
            let text = std::fs::read_to_string(file).unwrap();
            text.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_string())
            })
        };
        let machine = this();
        let kilobytes = field("/proc/meminfo", "MemTotal").unwrap();
        let kilobytes: u64 = kilobytes.trim_end_matches(" kB").parse().unwrap();
        assert_eq!(machine.memory_bytes, Some(1024 * kilobytes));
        // Processors other than x86 have no such line.
        if let Some(name) = field("/proc/cpuinfo", "model name") {
            assert_eq!(machine.processor, Some(name));
        }
    }
}
