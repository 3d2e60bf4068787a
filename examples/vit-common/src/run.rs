//! A run in its folder: its options, and what comes before the training and after it, in one process
//! or in several.

use crate::config::Mode;
use crate::data::Dataset;
use crate::memory::mib;
use crate::settings::{MAY_CHANGE, Settings};
use anyhow::{Result, ensure};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, Command, FromArgMatches, Id};
use lean_replicas::Replicas;
use lean_run_folder::{Checkpoints, RunFolder, fail, identity, listed, note, resumed};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The options of a program; `E` are those that only this one has.
#[derive(Debug, Args)]
pub struct Options<E: Args> {
    /// The settings of the run.
    #[command(flatten)]
    pub settings: Settings,
    /// Those of this program.
    #[command(flatten)]
    pub extra: E,
    /// Train in the processes that `mpirun` has started, each on its share of every batch; needs a
    /// build with the feature mpi
    #[arg(long)]
    pub data_parallel: bool,
    /// With --data-parallel: each process has the optimizer states of a part of the parameters
    #[arg(long, requires = "data_parallel")]
    pub shard_optimizer: bool,
    /// Folder for settings, checkpoints and results [default: artifacts/ and the program's name]
    #[arg(long, value_name = "FOLDER")]
    pub artifact_dir: Option<PathBuf>,
    /// Continue after the last complete epoch in --artifact-dir. Options default to those of that
    /// run, and only how it is computed may differ, and the place of --data
    #[arg(long)]
    pub resume: bool,
    /// Start a new run even if --artifact-dir holds another one
    #[arg(long, conflicts_with = "resume")]
    pub overwrite: bool,
    /// Record a memory timeline of the third and the fourth batch, for `burn-memory` and
    /// pytorch.org/memory_viz, or with the ending `.perfetto.json` for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub memory_timeline: Option<PathBuf>,
}

/// A program that was started.
#[derive(Debug)]
pub struct Start<E: Args> {
    /// Its name.
    pub program: &'static str,
    /// Its options.
    pub options: Options<E>,
    /// The names of those that were given.
    pub given: Vec<String>,
    /// The processes that train together, if there are several.
    pub replicas: Option<Replicas>,
}

/// Runs `<program> train`. An error goes to stderr in one line.
pub fn main<E: Args>(
    program: &'static str,
    about: &'static str,
    run: impl FnOnce(&Start<E>) -> Result<()>,
) -> ExitCode {
    let (options, given) = match options::<E>(program, about) {
        Ok(options) => options,
        Err(error) => return usage(&error),
    };
    let replicas = match options.data_parallel.then(join).transpose() {
        Ok(replicas) => replicas,
        Err(error) => return fail(&*error),
    };
    let start = Start {
        program,
        options,
        given,
        replicas,
    };
    // Before this process leaves the others, which may not answer.
    run(&start).map_or_else(|error| fail(&*error), |()| ExitCode::SUCCESS)
}

fn options<E: Args>(
    program: &'static str,
    about: &'static str,
) -> Result<(Options<E>, Vec<String>), clap::Error> {
    // After the options, whose own description would take its place.
    let train = Options::<E>::augment_args(Command::new("train"));
    let command = Command::new(program)
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommand(train.about(about).long_about(None));
    let matches = command.try_get_matches()?;
    let matches = matches.subcommand_matches("train").unwrap_or(&matches);
    let was_given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
    let names = matches.ids().map(Id::as_str);
    let given = names.filter(was_given).map(String::from).collect();
    Ok((Options::from_arg_matches(matches)?, given))
}

/// Help and version as clap formats them; an error in one line.
pub fn usage(error: &clap::Error) -> ExitCode {
    if let ErrorKind::DisplayHelp | ErrorKind::DisplayVersion = error.kind() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    note(&first.split_whitespace().collect::<Vec<_>>().join(" "));
    ExitCode::from(2)
}

/// The number of this process among those of its machine, by which it chooses its device; `None` if
/// it was not started as one of several.
pub fn local_rank() -> Option<usize> {
    #[cfg(feature = "mpi")]
    return lean_replicas::Mpi::local_rank();
    #[cfg(not(feature = "mpi"))]
    None
}

/// Joins the processes that `mpirun` has started.
fn join() -> Result<Replicas> {
    #[cfg(feature = "mpi")]
    return Ok(Replicas::new(lean_replicas::Mpi::initialize)?);
    #[cfg(not(feature = "mpi"))]
    anyhow::bail!(
        "--data-parallel needs MPI, which is not compiled in: build with `--features mpi`"
    )
}

/// A run that can begin.
#[derive(Debug)]
pub struct Run {
    /// Its settings.
    pub settings: Settings,
    /// Its images.
    pub data: Dataset,
    /// Its folder.
    pub folder: RunFolder,
    /// Its checkpoints.
    pub checkpoints: Checkpoints,
    /// What tells it from other runs.
    pub identity: String,
    /// The epoch after which it goes on.
    pub resume_point: Option<usize>,
    /// Whether this is the one process that shows and writes what is the same in all.
    pub is_first: bool,
}

impl<E: Args> Start<E> {
    /// Whether this is the one process that shows and writes what is the same in all.
    pub fn is_first(&self) -> bool {
        self.replicas.as_ref().is_none_or(Replicas::is_first)
    }

    /// Takes the folder for a run. Of several processes, the first does. Whatever is wrong with the
    /// options, in any process, is found before anything is written or removed; `check` looks at
    /// the settings and the images, and may settle what is open. `None` if the run to resume has
    /// ended: its files stay.
    ///
    /// # Errors
    ///
    /// The options; the folder is of another run; the processes differ.
    pub fn begin<T>(
        &self,
        parts: &[&str],
        check: impl FnOnce(&mut Settings, &Dataset) -> Result<T>,
    ) -> Result<Option<(Run, T)>> {
        let Options {
            resume, overwrite, ..
        } = self.options;
        let usual = || Path::new("artifacts").join(self.program);
        let path = &self.options.artifact_dir.clone().unwrap_or_else(usual);
        let is_first = self.is_first();
        let mut folder = RunFolder::read(path, parts);
        let mut settings = self.options.settings.clone();
        settings.program = self.program.into();
        if resume {
            if is_first {
                folder = RunFolder::open(path, parts)?;
            }
            let saved: Settings = folder.settings()?;
            ensure!(
                saved.program == self.program,
                "the run to resume is of `{}`: use that program",
                saved.program
            );
            settings = resumed(&saved, &settings, &self.given, &MAY_CHANGE)?;
        } else if is_first {
            // Before `check`, which may take a while.
            RunFolder::ensure_free::<Settings>(path, parts, overwrite)?;
        }
        let data = settings.load_data()?;
        let checked = check(&mut settings, &data)?;
        ensure!(
            self.replicas.is_none() || settings.mode == Mode::Release,
            "--data-parallel needs gradient release: use --mode release"
        );
        if let Some(replicas) = &self.replicas {
            let last = data.train.len() - (settings.batches(&data) - 1) * settings.batch_size;
            ensure!(
                last >= replicas.size(),
                "the last batch of an epoch has {last} images, and each of {} processes needs one: \
                 choose another --batch-size",
                replicas.size()
            );
        }
        if is_first && !resume {
            folder = RunFolder::create::<Settings>(path, parts, overwrite)?;
        }
        if let Some(replicas) = &self.replicas {
            replicas.meet("the beginning")?;
            // Machines may have the images elsewhere.
            let settings = listed(&settings)?.into_iter();
            replicas.same_settings(settings.filter(|(name, _)| name != "data"))?;
        }
        if resume && folder.is_finished() {
            if is_first {
                let path = path.display();
                note(&format!(
                    "{path} holds a finished run: nothing is left to train"
                ));
            }
            return Ok(None);
        }

        let identity = identity(&settings, &MAY_CHANGE)?;
        let checkpoints = folder.checkpoints().of_run(&identity);
        let replicas = self.replicas.as_ref();
        let meet = || replicas.map_or(Ok(()), |replicas| replicas.meet("the folder"));
        // The first process cleans up before the others look.
        if !is_first {
            meet()?;
        }
        let resume_point = match resume {
            true => checkpoints.resume_point()?,
            false => None,
        };
        if is_first {
            match (resume, resume_point) {
                (false, _) => folder.start(&settings)?,
                (true, Some(epoch)) => note(&format!("going on after epoch {epoch}")),
                (true, None) => note("no epoch was finished: beginning with the first"),
            }
            folder.save_settings(&settings)?;
            meet()?;
        }
        let run = Run {
            settings,
            data,
            folder,
            checkpoints,
            identity,
            resume_point,
            is_first,
        };
        Ok(Some((run, checked)))
    }
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Epochs trained.
    pub epochs: usize,
    /// Mean loss of the validation images.
    pub validation_loss: f64,
    /// Fraction of the validation images that are classified correctly.
    pub validation_accuracy: f64,
    /// Peak of the bytes in use, on the heap or on the GPU, beyond those before the model was
    /// built.
    pub peak_bytes: u64,
    /// Peak of the bytes reserved from the GPU; not counted on the heap.
    pub peak_reserved_bytes: Option<u64>,
    /// SHA-256 of the weights.
    pub weights_digest: String,
}

impl Run {
    /// Writes `results.json`, and says what is in it.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn end(&self, results: &Results) -> Result<()> {
        self.folder.save_results(results)?;
        note(&format!(
            "validation accuracy {:.2} % after {} epochs, peak memory {}",
            results.validation_accuracy * 100.0,
            results.epochs,
            mib(results.peak_bytes)
        ));
        Ok(())
    }
}
