//! Bytes on the heap, which the allocator of a binary counts, and those that are left.

use crate::data::Dataset;
use crate::model::VitConfig;
use crate::terminal::mib;
use anyhow::{Result, ensure};
use peak_alloc::PeakAlloc;
use serde::Serialize;
use std::fs;
use std::path::Path;

/// The highest number of bytes. It is written with the names that results have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// Bytes in use.
    #[serde(rename = "peak_bytes")]
    pub in_use: u64,
    /// Bytes reserved from the device; not counted on the heap.
    #[serde(rename = "peak_reserved_bytes")]
    pub reserved: Option<u64>,
}

/// Bytes on the heap, beyond those in use when the counting started.
#[derive(Clone, Copy, Debug)]
pub struct Heap {
    start: usize,
}

impl Heap {
    /// Starts counting: bytes in use now are left out.
    pub fn start() -> Self {
        PeakAlloc.reset_peak_usage();
        Self {
            start: PeakAlloc.current_usage(),
        }
    }

    /// Bytes in use now.
    pub fn in_use(&self) -> u64 {
        PeakAlloc.current_usage().saturating_sub(self.start) as u64
    }

    /// The peak since the start, or since the last reset.
    pub fn peak(&self) -> u64 {
        PeakAlloc.peak_usage().saturating_sub(self.start) as u64
    }

    /// Resets the peak to the bytes in use now.
    pub fn reset_peak(&self) {
        PeakAlloc.reset_peak_usage();
    }
}

/// What is sure to be in memory at once while a model is trained on the heap.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// Images in a batch.
    pub batch_size: usize,
    /// Whether several processes share each batch.
    pub is_shared: bool,
    /// Blocks whose activations are kept for the backward pass, with the one that is computed.
    pub blocks: usize,
    /// Whether attention makes the scores of all pairs of tokens.
    pub has_scores: bool,
}

impl Training {
    /// Fails if there is certainly no memory for it: Burn would be ended by the system.
    ///
    /// # Errors
    ///
    /// What it takes at least, and the options that lower it.
    pub fn ensure_fits(&self, model: &VitConfig, data: &Dataset) -> Result<()> {
        let images = [data.train.len(), data.validation.len()];
        self.ensure_within(available(), model, images)
    }

    fn ensure_within(
        &self,
        available: Option<u64>,
        model: &VitConfig,
        [train, validation]: [usize; 2],
    ) -> Result<()> {
        let Some(available) = available else {
            return Ok(());
        };
        let batch = match self.is_shared {
            // Each process has at least one image of every batch.
            true => 1,
            false => self.batch_size.min(train),
        };
        let trained = self.activations(model, batch, self.blocks);
        // The validation keeps nothing.
        let validated = self.activations(model, self.batch_size.min(validation), 1);
        let (weights, activations) = (model.bytes_of_weights(), trained.max(validated));
        let size = model.image_size;
        ensure!(
            weights.saturating_add(activations) <= available,
            "there is no memory to train on images of {size}x{size} in {} tokens: weights take at least {} \
             MiB, activations {} MiB, and {} MiB are left: choose a smaller --image-size or --batch-size, or \
             another --patch-size",
            model.tokens(),
            mib(weights, 0),
            mib(activations, 0),
            mib(available, 0)
        );
        Ok(())
    }

    fn activations(&self, model: &VitConfig, batch: usize, blocks: usize) -> u64 {
        let scores = match self.has_scores {
            true => model.bytes_of_scores(batch),
            false => 0,
        };
        let block = model.bytes_of_tokens(batch).saturating_add(scores);
        block.saturating_mul(blocks as u64)
    }
}

/// Bytes that this process can still take, swap included: what the machine has left, or its control
/// group if that is less. `None` on systems other than Linux.
pub fn available() -> Option<u64> {
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let of_machine = kib("MemAvailable:")? << 10;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_group = left_in_groups(Path::new("/sys/fs/cgroup"), &groups);
    let left = of_group.map_or(of_machine, |of_group| of_group.min(of_machine));
    Some(left + (kib("SwapFree:")? << 10))
}

/// Bytes that the control groups of a process have left, of either version; `None` if none of them
/// has a limit.
fn left_in_groups(root: &Path, groups: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let (_, group) = line.split_once(':')?;
        let (controllers, path) = group.split_once(':')?;
        let (folder, limit, used) = match controllers {
            "" => (root.to_path_buf(), "memory.max", "anon"),
            "memory" => (root.join("memory"), "memory.limit_in_bytes", "total_rss"),
            _ => return None,
        };
        // A group has the limits of those around it, too.
        let group = folder.join(path.trim_start_matches('/'));
        let groups = group
            .ancestors()
            .take_while(|group| group.starts_with(&folder));
        groups.filter_map(|group| left_in(group, limit, used)).min()
    };
    groups.lines().filter_map(of_line).min()
}

/// Files that the system would drop from memory count as left.
fn left_in(group: &Path, limit: &str, used: &str) -> Option<u64> {
    let limit = fs::read_to_string(group.join(limit)).ok()?;
    // Version 2 says `max` if there is none.
    let limit: u64 = limit.trim().parse().ok()?;
    let numbers = fs::read_to_string(group.join("memory.stat")).ok()?;
    let used = numbers.lines().find_map(|line| {
        let (name, number) = line.split_once(' ')?;
        (name == used).then(|| number.parse::<u64>().ok())?
    });
    Some(limit.saturating_sub(used?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Preset;

    const TRAINING: Training = Training {
        batch_size: 32,
        is_shared: false,
        blocks: 4,
        has_scores: true,
    };

    fn refusal(training: Training, available: u64, model: &VitConfig) -> Option<String> {
        let fits = training.ensure_within(Some(available), model, [1438, 359]);
        fits.err().map(|error| error.to_string())
    }

    #[test]
    fn what_no_memory_holds_is_refused() {
        let digits = Preset::Tiny.config(8, 1, 10);
        assert_eq!(refusal(TRAINING, 64 << 20, &digits), None);
        assert!(refusal(TRAINING, 1 << 20, &digits).is_some());
        let large = Preset::Tiny.config(1024, 1, 10);
        let text = refusal(TRAINING, 1 << 40, &large).unwrap();
        let begins = "there is no memory to train on images of 1024x1024 in 262145 tokens: ";
        assert!(text.starts_with(begins), "{text}");
        assert!(text.ends_with("or another --patch-size"), "{text}");
        // As many scores as can be counted at all.
        let mut largest = Preset::Large.config(8192, 3, 10);
        largest.patch_size = 1;
        let countless = Training {
            batch_size: usize::MAX,
            ..TRAINING
        };
        assert!(refusal(countless, 1 << 60, &largest).is_some());
        assert!(TRAINING.ensure_within(None, &largest, [1438, 359]).is_ok());
    }

    #[test]
    fn only_what_is_there_at_once_counts() {
        let model = Preset::Tiny.config(64, 1, 10);
        // 32 images, 4 heads, 1025 tokens: 513 MiB of scores in a block.
        let recomputed = Training {
            blocks: 1,
            ..TRAINING
        };
        let without_scores = Training {
            has_scores: false,
            ..TRAINING
        };
        let shared = Training {
            is_shared: true,
            ..TRAINING
        };
        for (training, mib) in [
            (TRAINING, 2087),
            (recomputed, 524),
            (without_scores, 36),
            // The first of the processes validates with whole batches.
            (shared, 524),
        ] {
            assert!(
                refusal(training, mib << 20, &model).is_none(),
                "{training:?}"
            );
            let less = (mib - 8) << 20;
            assert!(refusal(training, less, &model).is_some(), "{training:?}");
        }
        // The patches alone, and their gradient.
        let mut patches = Preset::Tiny.config(8192, 1, 10);
        patches.patch_size = 8192;
        assert!(refusal(TRAINING, 32 << 30, &patches).is_some());
        assert!(refusal(TRAINING, 33 << 30, &patches).is_none());
    }

    #[test]
    fn the_smallest_limit_of_all_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |group: &str, files: [(&str, &str); 2]| {
            let group = root.path().join(group);
            fs::create_dir_all(&group).unwrap();
            for (name, text) in files {
                fs::write(group.join(name), text).unwrap();
            }
        };
        let of_job = [("memory.max", "max\n"), ("memory.stat", "anon 70\n")];
        write("slurm/job", of_job);
        let left = |groups: &str| left_in_groups(root.path(), groups);
        assert_eq!(left("0::/slurm/job\n"), None);
        let of_slurm = [
            ("memory.max", "1000\n"),
            ("memory.stat", "anon 100\nfile 800\n"),
        ];
        write("slurm", of_slurm);
        assert_eq!(left("0::/slurm/job\n"), Some(900));
        assert_eq!(left("0::/\n"), None);
        // In a container, the path may be that of the machine.
        let of_container = [
            ("memory.limit_in_bytes", "500\n"),
            ("memory.stat", "rss 1\ntotal_rss 20\n"),
        ];
        write("memory", of_container);
        let groups = "5:cpu:/\n4:memory:/docker/ab\n0::/slurm/job\n";
        assert_eq!(left(groups), Some(480));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn there_is_memory_left() {
        assert!(available().unwrap() > 1 << 20);
    }
}
