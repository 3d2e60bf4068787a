//! Where the numbers come from: they mean little without.

use crate::pytorch::TorchVersions;
use serde::Serialize;
use std::fs;
use std::process::Command;
use std::thread;

/// The machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Operating system and processor family.
    pub system: String,
    /// The processor by its own name.
    pub processor: Option<String>,
    /// Threads that run at once.
    pub threads: usize,
    /// Bytes of main memory.
    pub memory_bytes: Option<u64>,
    /// GPUs as NVIDIA's driver has them: name, driver, memory.
    pub gpus: Vec<String>,
    /// Adapters as wgpu has them, in a build that has wgpu.
    pub adapters: Vec<String>,
}

impl Machine {
    /// This one.
    pub fn this() -> Self {
        Self {
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            processor: field("/proc/cpuinfo", "model name"),
            threads: thread::available_parallelism().map_or(1, Into::into),
            memory_bytes: field("/proc/meminfo", "MemTotal").and_then(|text| {
                let kilobytes: u64 = text.split_whitespace().next()?.parse().ok()?;
                Some(1024 * kilobytes)
            }),
            gpus: nvidia_gpus(),
            adapters: adapters(),
        }
    }

    /// In one line.
    pub fn describe(&self) -> String {
        let mut parts = self.gpus.clone();
        let adapters = self.adapters.iter();
        parts.extend(adapters.map(|name| format!("wgpu adapter {name}")));
        parts.extend(self.processor.clone());
        parts.push(format!("{} threads", self.threads));
        if let Some(bytes) = self.memory_bytes {
            parts.push(format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30)));
        }
        parts.push(self.system.clone());
        parts.join(", ")
    }
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().into())
    })
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
    let adapters = vit::device::adapters().into_iter();
    adapters.map(|adapter| adapter.name).collect()
}

#[cfg(not(feature = "wgpu"))]
fn adapters() -> Vec<String> {
    Vec::new()
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Versions {
    /// This workspace.
    pub gradient_release: String,
    /// Burn, as it is locked.
    pub burn: String,
    /// cubecl, below Burn's GPU backends.
    pub cubecl: String,
    /// The compiler.
    pub rustc: String,
    /// `release` or `debug`.
    pub profile: String,
    /// PyTorch and what is around it.
    pub pytorch: Option<TorchVersions>,
}

impl Versions {
    /// Those of this program.
    pub fn of(pytorch: Option<&TorchVersions>) -> Self {
        let profile = if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        };
        Self {
            gradient_release: env!("CARGO_PKG_VERSION").into(),
            burn: locked("burn"),
            cubecl: locked("cubecl"),
            rustc: env!("BENCHMARKS_RUSTC").into(),
            profile: profile.into(),
            pytorch: pytorch.cloned(),
        }
    }

    /// In one line.
    pub fn describe(&self) -> String {
        let mut text = format!(
            "Burn {}, cubecl {}, {}, {} build",
            self.burn, self.cubecl, self.rustc, self.profile
        );
        if let Some(pytorch) = &self.pytorch {
            text += &format!("; PyTorch {}, Python {}", pytorch.torch, pytorch.python);
            if let Some(optimi) = &pytorch.optimi {
                text += &format!(", optimi {optimi}");
            }
        }
        text
    }
}

fn locked(package: &str) -> String {
    let name = format!("name = \"{package}\"");
    let mut lines = include_str!("../../Cargo.lock").lines();
    lines.find(|line| *line == name);
    let version = lines.next().and_then(|line| line.split('"').nth(1));
    version.unwrap_or("unknown").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locked_version_of_burn_is_known() {
        assert!(locked("burn").starts_with("0.21."));
        assert_eq!(locked("no such package"), "unknown");
    }
}
