//! The file of a snapshot: gzip of JSON, so that `zcat FILE | jq` reads it.
//!
//! The JSON is an object, in this order:
//!
//! | key | value |
//! |---|---|
//! | `format` | `"burn-memory-timeline"` |
//! | `version` | 1; a program refuses what is above the version it knows |
//! | `title`, `backend`, `parameters`, `operations`, `warnings` | as in [`Snapshot`] |
//! | `categories` | names of categories; `holders.category` counts in it |
//! | `times` | microseconds: the first one, then what each tick adds to the one before |
//! | `holders` | columns `bytes`, `category`, `parameter`, `operation`, `from`, `ticks` |
//! | `phases` | columns `kind`, `parameter`, `iteration`, `from`, `ticks` |
//! | `samples` | columns `tick`, `in_use`, `above`, `operation` |
//!
//! A column is an array with one value for each holder, phase or sample. `from`, `tick` and
//! `in_use` are differences, each from the value before, the first from 0. `ticks` is how long it
//! lasts: `until` less `from`. `above` is how far the peak is above `in_use`. A phase's `kind` is
//! `"forward"`, `"backward"`, `"optimizer"` or `"step"`, and only a step has a `parameter`. Where
//! there is no parameter or operation stands `null`.

use super::{Category, Holder, Parameter, Phase, PhaseKind, Sample, Snapshot, SnapshotError};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::process;

/// The version of the format that this program writes, and the latest that it reads.
pub const VERSION: u64 = 1;

const FORMAT: &str = "burn-memory-timeline";

/// The largest number that a reader with floating-point numbers alone has exactly.
const EXACT: u64 = 1 << 53;

/// The two bytes that every gzip begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

#[derive(Serialize, Deserialize)]
struct Contents<'a> {
    format: Cow<'a, str>,
    version: u64,
    title: Cow<'a, str>,
    backend: Cow<'a, str>,
    parameters: Cow<'a, [Parameter]>,
    operations: Cow<'a, [String]>,
    warnings: Cow<'a, [String]>,
    categories: Vec<Category>,
    times: Vec<u64>,
    holders: Holders,
    phases: Phases,
    samples: Samples,
}

#[derive(Default, Serialize, Deserialize)]
struct Holders {
    bytes: Vec<u64>,
    category: Vec<usize>,
    parameter: Vec<Option<usize>>,
    operation: Vec<usize>,
    from: Vec<u64>,
    ticks: Vec<u64>,
}

#[derive(Default, Serialize, Deserialize)]
struct Phases {
    kind: Vec<Kind>,
    parameter: Vec<Option<usize>>,
    iteration: Vec<usize>,
    from: Vec<u64>,
    ticks: Vec<u64>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Forward,
    Backward,
    Optimizer,
    Step,
}

#[derive(Default, Serialize, Deserialize)]
struct Samples {
    tick: Vec<u64>,
    in_use: Vec<i64>,
    above: Vec<i64>,
    operation: Vec<Option<usize>>,
}

/// What tells a snapshot from other JSON.
#[derive(Deserialize)]
struct Header {
    format: String,
    version: u64,
}

/// What is wrong, without the file's name.
enum Problem {
    Io(io::Error),
    Foreign,
    Truncated,
    Damaged(String),
    Newer(u64),
    Inconsistent(String),
}

impl Snapshot {
    /// Saves it to a file. Nobody ever sees half of it: it is written beside `path`, and renamed
    /// when it is complete.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or the snapshot contradicts itself.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), SnapshotError> {
        let path = path.as_ref();
        let failed = |reason| SnapshotError::Write {
            path: path.into(),
            reason,
        };
        self.check().map_err(|problem| problem.of(path))?;
        let beside = Beside::of(path).map_err(failed)?;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&beside.path)
            .map_err(failed)?;
        let mut file = BufWriter::new(file);
        self.compress(&mut file).map_err(failed)?;
        let file = file
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        drop(file);
        fs::rename(&beside.path, path).map_err(failed)
    }

    /// Looks for the folder that [`save`](Self::save) is going to want.
    #[cfg(feature = "recorder")]
    pub(crate) fn find_folder(path: &Path) -> Result<(), SnapshotError> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let found = fs::metadata(folder).and_then(|found| match found.is_dir() {
            true => Ok(()),
            false => Err(io::ErrorKind::NotADirectory.into()),
        });
        found.map_err(|reason| SnapshotError::Write {
            path: path.into(),
            reason,
        })
    }

    /// Loads it from a file that [`save`](Self::save) wrote.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is something else, is cut short, is of a later version, or
    /// contradicts itself.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, SnapshotError> {
        let path = path.as_ref();
        let failed = |reason| SnapshotError::Open {
            path: path.into(),
            reason,
        };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        decompress(BufReader::new(file)).map_err(|problem| problem.of(path))
    }

    /// Writes what [`save`](Self::save) saves.
    ///
    /// # Errors
    ///
    /// As for [`save`](Self::save), with `<stream>` for the file.
    pub fn write(&self, to: impl Write) -> Result<(), SnapshotError> {
        self.check()
            .map_err(|problem| problem.of(STREAM.as_ref()))?;
        self.compress(to).map_err(|reason| SnapshotError::Write {
            path: STREAM.into(),
            reason,
        })
    }

    /// Reads what [`write`](Self::write) wrote.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load), with `<stream>` for the file.
    pub fn read(from: impl Read) -> Result<Self, SnapshotError> {
        decompress(from).map_err(|problem| problem.of(STREAM.as_ref()))
    }

    fn compress(&self, to: impl Write) -> io::Result<()> {
        let mut gzip = BufWriter::new(GzEncoder::new(to, Compression::default()));
        serde_json::to_writer(&mut gzip, &self.to_contents())?;
        let gzip = gzip.into_inner().map_err(io::IntoInnerError::into_error)?;
        gzip.finish()?.flush()
    }

    fn to_contents(&self) -> Contents<'_> {
        let mut holders = Holders::default();
        let mut last = 0;
        for holder in &self.holders {
            holders.bytes.push(holder.bytes);
            holders.category.push(holder.category.layer());
            holders.parameter.push(holder.parameter);
            holders.operation.push(holder.operation);
            holders.from.push((holder.from - last) as u64);
            holders.ticks.push((holder.until - holder.from) as u64);
            last = holder.from;
        }
        let mut phases = Phases::default();
        let mut last = 0;
        for phase in &self.phases {
            let (kind, parameter) = match phase.kind {
                PhaseKind::Forward => (Kind::Forward, None),
                PhaseKind::Backward => (Kind::Backward, None),
                PhaseKind::Optimizer => (Kind::Optimizer, None),
                PhaseKind::Step(parameter) => (Kind::Step, Some(parameter)),
            };
            phases.kind.push(kind);
            phases.parameter.push(parameter);
            phases.iteration.push(phase.iteration);
            phases.from.push((phase.from - last) as u64);
            phases.ticks.push((phase.until - phase.from) as u64);
            last = phase.from;
        }
        let mut samples = Samples::default();
        let mut last = (0, 0);
        for sample in &self.samples {
            samples.tick.push((sample.tick - last.0) as u64);
            samples.in_use.push(sample.in_use as i64 - last.1);
            samples
                .above
                .push(sample.peak as i64 - sample.in_use as i64);
            samples.operation.push(sample.operation);
            last = (sample.tick, sample.in_use as i64);
        }
        let mut last = 0;
        let times = self.times.iter().map(|time| {
            let since = time - last;
            last = *time;
            since
        });
        Contents {
            format: FORMAT.into(),
            version: VERSION,
            title: self.title.as_str().into(),
            backend: self.backend.as_str().into(),
            parameters: self.parameters.as_slice().into(),
            operations: self.operations.as_slice().into(),
            warnings: self.warnings.as_slice().into(),
            categories: Category::ALL.into(),
            times: times.collect(),
            holders,
            phases,
            samples,
        }
    }

    /// Whether everything that a reader counts in is there, and in its order.
    fn check(&self) -> Result<(), Problem> {
        let ticks = self.times.len();
        let is_sorted = |name, mut values: Box<dyn Iterator<Item = u64> + '_>| {
            let mut last = 0;
            ensure(
                values.all(|value| value >= mem::replace(&mut last, value)),
                || format!("{name} are out of order"),
            )
        };
        is_sorted("times", Box::new(self.times.iter().copied()))?;
        let from = |holder: &Holder| holder.from as u64;
        is_sorted("holders", Box::new(self.holders.iter().map(from)))?;
        let from = |phase: &Phase| phase.from as u64;
        is_sorted("phases", Box::new(self.phases.iter().map(from)))?;
        let tick = |sample: &Sample| sample.tick as u64;
        is_sorted("samples", Box::new(self.samples.iter().map(tick)))?;
        ensure(self.times.last().is_none_or(|time| *time < EXACT), || {
            "times are beyond all reason".into()
        })?;

        let span = |from: usize, until: usize, of: &str, number: usize| {
            ensure(from <= until, || {
                format!("{of} {number} ends at tick {until}, before it begins at {from}")
            })?;
            ensure(from < ticks && until <= ticks, || {
                format!("{of} {number} lasts from tick {from} to {until}, of {ticks}")
            })
        };
        let parameter = |index: Option<usize>, of: &str, number: usize| {
            ensure(
                index.is_none_or(|index| index < self.parameters.len()),
                || {
                    let count = self.parameters.len();
                    format!("{of} {number} is of parameter {index:?}, of {count}")
                },
            )
        };
        let operation = |index: Option<usize>, of: &str, number: usize| {
            ensure(
                index.is_none_or(|index| index < self.operations.len()),
                || {
                    let count = self.operations.len();
                    format!("{of} {number} is of operation {index:?}, of {count}")
                },
            )
        };
        for (number, holder) in self.holders.iter().enumerate() {
            span(holder.from, holder.until, "holder", number)?;
            parameter(holder.parameter, "holder", number)?;
            operation(Some(holder.operation), "holder", number)?;
        }
        for (number, phase) in self.phases.iter().enumerate() {
            span(phase.from, phase.until, "phase", number)?;
            if let PhaseKind::Step(index) = phase.kind {
                parameter(Some(index), "phase", number)?;
            }
        }
        for (number, sample) in self.samples.iter().enumerate() {
            let Sample { tick, .. } = sample;
            ensure(*tick < ticks, || {
                format!("sample {number} is after tick {tick}, of {ticks}")
            })?;
            operation(sample.operation, "sample", number)?;
            ensure(sample.in_use.max(sample.peak) < EXACT, || {
                format!("sample {number} is of more bytes than any machine has")
            })?;
        }
        self.check_sums()
    }

    /// That no sum of what is held at once is more than a reader can count.
    fn check_sums(&self) -> Result<(), Problem> {
        let mut change = vec![0_i128; self.times.len() + 1];
        for holder in &self.holders {
            change[holder.from] += i128::from(holder.bytes);
            change[holder.until] -= i128::from(holder.bytes);
        }
        let mut sum = 0;
        for (tick, change) in change.into_iter().enumerate() {
            sum += change;
            ensure(sum < i128::from(EXACT), || {
                format!("more bytes are held at tick {tick} than any machine has")
            })?;
        }
        Ok(())
    }
}

/// What stands for the file's name where there is none.
const STREAM: &str = "<stream>";

/// A file beside another that is gone unless it takes its place.
struct Beside {
    path: PathBuf,
}

impl Beside {
    fn of(path: &Path) -> io::Result<Self> {
        let name = path
            .file_name()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"))?;
        let mut beside = OsString::from(".");
        beside.push(name);
        beside.push(format!(".{}.part", process::id()));
        let path = path.with_file_name(beside);
        Ok(Self { path })
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // After the renaming there is none, which is as it should be.
        let _ = fs::remove_file(&self.path);
    }
}

fn decompress(mut from: impl Read) -> Result<Snapshot, Problem> {
    let mut packed = Vec::new();
    from.read_to_end(&mut packed).map_err(Problem::Io)?;
    if !packed.starts_with(&GZIP) {
        // An empty file, or one byte of gzip, is all that was written before a full disk.
        return Err(match GZIP.starts_with(&packed) {
            true => Problem::Truncated,
            false => Problem::Foreign,
        });
    }
    let mut json = Vec::new();
    if let Err(error) = GzDecoder::new(packed.as_slice()).read_to_end(&mut json) {
        let is_ours = can_begin_ours(&json);
        return Err(match error.kind() {
            _ if !is_ours => Problem::Foreign,
            io::ErrorKind::UnexpectedEof => Problem::Truncated,
            _ => Problem::Damaged(error.to_string()),
        });
    }
    drop(packed);
    match serde_json::from_slice::<Contents<'_>>(&json) {
        Ok(contents) if contents.format == FORMAT && contents.version == VERSION => {
            let snapshot = contents.into_snapshot().map_err(Problem::Inconsistent)?;
            snapshot.check()?;
            Ok(snapshot)
        }
        Ok(Contents {
            format, version, ..
        }) => Err(other(&format, version, "")),
        Err(error) => Err(match serde_json::from_slice::<Header>(&json) {
            Ok(Header { format, version }) => other(&format, version, &error.to_string()),
            Err(_) if json.len() >= FORMAT.len() && can_begin_ours(&json) => {
                Problem::Damaged(error.to_string())
            }
            Err(_) => Problem::Foreign,
        }),
    }
}

/// Why JSON that has a header is not a snapshot that can be read.
fn other(format: &str, version: u64, problem: &str) -> Problem {
    match version {
        _ if format != FORMAT => Problem::Foreign,
        VERSION => Problem::Inconsistent(problem.into()),
        0 => Problem::Inconsistent("there is no version 0 of the format".into()),
        _ => Problem::Newer(version),
    }
}

/// Whether a text can be the beginning of a snapshot's.
fn can_begin_ours(json: &[u8]) -> bool {
    let dense: Vec<u8> = json
        .iter()
        .take(100)
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let ours = format!(r#"{{"format":"{FORMAT}""#);
    let length = ours.len().min(dense.len());
    dense[..length] == ours.as_bytes()[..length]
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), Problem> {
    match holds {
        true => Ok(()),
        false => Err(Problem::Inconsistent(problem())),
    }
}

impl Problem {
    fn of(self, path: &Path) -> SnapshotError {
        let path = path.into();
        match self {
            Self::Io(reason) => SnapshotError::Read { path, reason },
            Self::Foreign => SnapshotError::Foreign { path },
            Self::Truncated => SnapshotError::Truncated { path },
            Self::Damaged(problem) => SnapshotError::Damaged { path, problem },
            Self::Newer(version) => SnapshotError::Newer { path, version },
            Self::Inconsistent(problem) => SnapshotError::Inconsistent { path, problem },
        }
    }
}

impl Contents<'_> {
    fn into_snapshot(self) -> Result<Snapshot, String> {
        let times = sums(self.times.into_iter(), "times")?;
        let holders = self.holders.into_rows(&self.categories)?;
        Ok(Snapshot {
            title: self.title.into_owned(),
            backend: self.backend.into_owned(),
            parameters: self.parameters.into_owned(),
            operations: self.operations.into_owned(),
            times,
            holders,
            phases: self.phases.into_rows()?,
            samples: self.samples.into_rows()?,
            warnings: self.warnings.into_owned(),
        })
    }
}

impl Holders {
    fn into_rows(self, categories: &[Category]) -> Result<Vec<Holder>, String> {
        let count = self.bytes.len();
        lengths(
            "holders",
            count,
            &[
                self.category.len(),
                self.parameter.len(),
                self.operation.len(),
                self.from.len(),
                self.ticks.len(),
            ],
        )?;
        let spans = spans(self.from, self.ticks, "holders")?;
        let row = |(number, (from, until)): (usize, (usize, usize))| {
            let category = self.category[number];
            let category = categories.get(category).copied().ok_or_else(|| {
                let count = categories.len();
                format!("holder {number} is of category {category}, of {count}")
            })?;
            Ok(Holder {
                bytes: self.bytes[number],
                category,
                parameter: self.parameter[number],
                operation: self.operation[number],
                from,
                until,
            })
        };
        spans.into_iter().enumerate().map(row).collect()
    }
}

impl Phases {
    fn into_rows(self) -> Result<Vec<Phase>, String> {
        let count = self.kind.len();
        lengths(
            "phases",
            count,
            &[
                self.parameter.len(),
                self.iteration.len(),
                self.from.len(),
                self.ticks.len(),
            ],
        )?;
        let spans = spans(self.from, self.ticks, "phases")?;
        let row = |(number, (from, until)): (usize, (usize, usize))| {
            let kind = match (self.kind[number], self.parameter[number]) {
                (Kind::Forward, _) => PhaseKind::Forward,
                (Kind::Backward, _) => PhaseKind::Backward,
                (Kind::Optimizer, _) => PhaseKind::Optimizer,
                (Kind::Step, Some(parameter)) => PhaseKind::Step(parameter),
                (Kind::Step, None) => {
                    return Err(format!("phase {number} is the step of no parameter"));
                }
            };
            Ok(Phase {
                kind,
                iteration: self.iteration[number],
                from,
                until,
            })
        };
        spans.into_iter().enumerate().map(row).collect()
    }
}

impl Samples {
    fn into_rows(self) -> Result<Vec<Sample>, String> {
        let count = self.tick.len();
        lengths(
            "samples",
            count,
            &[self.in_use.len(), self.above.len(), self.operation.len()],
        )?;
        let ticks = sums(self.tick.into_iter(), "the ticks of samples")?;
        let mut in_use = 0_u64;
        let row = |(number, tick): (usize, u64)| {
            let impossible = || format!("sample {number} is of fewer bytes than none");
            in_use = in_use
                .checked_add_signed(self.in_use[number])
                .ok_or_else(impossible)?;
            let peak = in_use
                .checked_add_signed(self.above[number])
                .ok_or_else(impossible)?;
            Ok(Sample {
                tick: index(tick),
                in_use,
                peak,
                operation: self.operation[number],
            })
        };
        ticks.into_iter().enumerate().map(row).collect()
    }
}

fn lengths(of: &str, count: usize, columns: &[usize]) -> Result<(), String> {
    match columns.iter().find(|column| **column != count) {
        None => Ok(()),
        Some(column) => Err(format!("{of} have columns of {count} and of {column}")),
    }
}

/// The values of which these are the differences.
fn sums(differences: impl Iterator<Item = u64>, of: &str) -> Result<Vec<u64>, String> {
    let mut sum = 0_u64;
    differences
        .map(|difference| {
            sum = sum
                .checked_add(difference)
                .ok_or_else(|| format!("{of} are beyond all reason"))?;
            Ok(sum)
        })
        .collect()
}

/// From and until.
fn spans(from: Vec<u64>, ticks: Vec<u64>, of: &str) -> Result<Vec<(usize, usize)>, String> {
    let from = sums(from.into_iter(), of)?;
    let span = |(from, ticks): (u64, u64)| (index(from), index(from.saturating_add(ticks)));
    Ok(from.into_iter().zip(ticks).map(span).collect())
}

/// A number that is too large for an index is too large for everything it could count in.
fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
