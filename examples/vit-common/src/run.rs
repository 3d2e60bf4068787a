//! A run in its folder: the options that are no settings, and what comes before the training and
//! after it, in one process or in several.

use crate::config::Mode;
use crate::data::Dataset;
use crate::parallel::{check_shares, join};
use crate::results::Results;
use crate::settings::TrainSettings;
use crate::terminal::{self, say};
use anyhow::{Result, ensure};
use clap::Args;
use lean_replicas::Replicas;
use lean_run_folder::{
    Checkpoints, INTERRUPTED, RunFolder, SettingsError, fail, identity, listed, note, resumed,
};
use serde::{Serialize, de::DeserializeOwned};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The options of `train`.
#[derive(Debug, Args)]
pub struct Options<S: Args> {
    /// The settings of the run.
    #[command(flatten)]
    pub settings: S,
    /// Train in the processes that `mpirun` has started, each on its share of every batch; needs a
    /// build with the feature mpi
    #[arg(long)]
    pub data_parallel: bool,
    /// With --data-parallel: each process has the optimizer states of a part of the parameters
    #[arg(long, requires = "data_parallel")]
    pub shard_optimizer: bool,
    /// With --data-parallel: how long a process waits for the others, which includes the time that
    /// the first one takes to validate and to save [default: 1800]
    #[arg(long, value_name = "SECONDS", requires = "data_parallel")]
    pub timeout: Option<NonZeroU64>,
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
    /// Stop after this many batches of the whole run, resumed or not: the current epoch is lost, and
    /// --resume continues after the last complete one
    #[arg(long, value_name = "BATCHES")]
    pub stop_after: Option<NonZeroUsize>,
    /// Record a memory timeline of the third and the fourth batch; `burn-memory` shows the file
    #[arg(long, value_name = "FILE")]
    pub memory_timeline: Option<PathBuf>,
    /// Write the results to stdout as one line of JSON: validation_accuracy, train_loss, epochs,
    /// peak_bytes, peak_reserved_bytes (null on the CPU), weights_digest
    #[arg(long)]
    pub json: bool,
}

/// The settings of a program.
pub trait Settings: Args + Clone + Serialize + DeserializeOwned {
    /// Those that a resumed run may have others of. What is in the images says their digest.
    const MAY_CHANGE: &'static [&'static str];

    /// Those that both programs have.
    fn train(&mut self) -> &mut TrainSettings;

    /// How the optimizer gets its gradients.
    fn mode(&self) -> Mode;

    /// What tells the run from others.
    ///
    /// # Errors
    ///
    /// The settings are no JSON.
    fn identity(&self) -> Result<String, SettingsError> {
        identity(self, Self::MAY_CHANGE)
    }
}

/// Runs a program. `train` gets the options, the names of those that were given, and the processes
/// that train together, if there are several.
pub fn main<S: Settings>(
    program: &'static str,
    about: &'static str,
    train: impl FnOnce(&Options<S>, &[String], Option<&Replicas>) -> Result<ExitCode>,
) -> ExitCode {
    let (options, given) = match terminal::options::<Options<S>>(program, about) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let join = || join(program, options.timeout);
    let replicas = match options.data_parallel.then(join).transpose() {
        Ok(replicas) => replicas,
        Err(error) => return fail(&*error),
    };
    let done = train(&options, &given, replicas.as_ref());
    // Before this process leaves the others, which may not answer.
    done.unwrap_or_else(|error| fail(&*error))
}

/// A run that can begin.
#[derive(Debug)]
pub struct Run<S> {
    /// Its settings.
    pub settings: S,
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

/// How a training has ended.
#[derive(Clone, Debug)]
pub enum Ending {
    /// All epochs are done.
    Finished(Results),
    /// It was stopped.
    Stopped {
        /// The epoch after which it can be resumed; 0 is the beginning.
        epoch: usize,
        /// Whether by Ctrl-C.
        by_ctrl_c: bool,
    },
    /// The process is not the first of several, which has the results.
    OfAnotherRank,
}

impl<S: Settings> Run<S> {
    /// Takes the folder for a run. Of several processes, the first does. Whatever is wrong with the
    /// options, in any process, is found before anything is written or removed; `check` looks at
    /// the settings and the images, and may settle what is open.
    ///
    /// # Errors
    ///
    /// The options; the folder is of another run; the processes differ.
    pub fn begin<T>(
        program: &str,
        options: &Options<S>,
        given: &[String],
        parts: &[&str],
        replicas: Option<&Replicas>,
        check: impl FnOnce(&mut S, &Dataset) -> Result<T>,
    ) -> Result<(Self, T)> {
        let path = &options.folder(program);
        let is_first = replicas.is_none_or(Replicas::is_first);
        let to_resume = match (options.resume, is_first) {
            (false, _) => None,
            (true, true) => Some(RunFolder::open(path, parts)?),
            (true, false) => Some(RunFolder::read(path, parts)),
        };
        let mut settings = match &to_resume {
            None => options.settings.clone(),
            Some(folder) => {
                let saved = folder.settings()?;
                resumed(&saved, &options.settings, given, S::MAY_CHANGE)?
            }
        };
        if to_resume.is_none() && is_first {
            // Before `check`, which may take a while.
            RunFolder::ensure_free::<S>(path, parts, options.overwrite)?;
        }
        let data = settings.train().load_data()?;
        let checked = check(&mut settings, &data)?;
        if let Some(replicas) = replicas {
            ensure!(
                settings.mode() == Mode::Release,
                "--data-parallel needs gradient release: use --mode release"
            );
            check_shares(replicas, data.train.len(), settings.train().batch_size)?;
        }

        let folder = match to_resume {
            Some(folder) => folder,
            None if is_first => RunFolder::create::<S>(path, parts, options.overwrite)?,
            None => RunFolder::read(path, parts),
        };
        if let Some(replicas) = replicas {
            replicas.meet("the beginning")?;
            // Machines may have the images elsewhere.
            let settings = listed(&settings)?.into_iter();
            replicas.same_settings(settings.filter(|(name, _)| name != "data"))?;
        }
        let identity = settings.identity()?;
        let mut run = Self {
            checkpoints: folder.checkpoints().of_run(&identity),
            settings,
            data,
            folder,
            identity,
            resume_point: None,
            is_first,
        };
        let meet = || replicas.map_or(Ok(()), |replicas| replicas.meet("the folder"));
        // The first process cleans up before the others look.
        if !is_first {
            meet()?;
        }
        if options.resume {
            run.resume_point = run.checkpoints.resume_point()?;
        }
        if is_first {
            run.prepare_folder(options.resume)?;
            meet()?;
        }
        Ok((run, checked))
    }

    fn prepare_folder(&self, resume: bool) -> Result<()> {
        match (resume, self.resume_point) {
            (false, _) => return Ok(self.folder.start(&self.settings)?),
            (true, Some(epoch)) => note(&format!("going on after epoch {epoch}")),
            (true, None) => note("no epoch was finished: beginning with the first"),
        }
        Ok(self.folder.save_settings(&self.settings)?)
    }

    /// Saves the results of a run that has ended, and says how it ended. The exit code of the
    /// program.
    ///
    /// # Errors
    ///
    /// The results cannot be written.
    pub fn end(&mut self, program: &str, options: &Options<S>, ending: Ending) -> Result<ExitCode> {
        match ending {
            Ending::Finished(results) => self.finish(&results, options.json)?,
            Ending::Stopped { epoch, by_ctrl_c } => {
                if self.is_first {
                    options.say_how_to_resume(program, epoch);
                }
                if by_ctrl_c {
                    return Ok(ExitCode::from(INTERRUPTED));
                }
            }
            Ending::OfAnotherRank => {}
        }
        Ok(ExitCode::SUCCESS)
    }

    fn finish(&mut self, results: &Results, json: bool) -> Result<()> {
        self.folder.save_results(results)?;
        let model = self.settings.train().model(&self.data);
        let summary = results.summary(&model, self.settings.mode());
        if !json {
            return say(&summary);
        }
        note(&summary);
        say(&serde_json::to_string(results)?)
    }
}

impl<S: Args> Options<S> {
    fn folder(&self, program: &str) -> PathBuf {
        let given = self.artifact_dir.clone();
        given.unwrap_or_else(|| Path::new("artifacts").join(program))
    }

    fn say_how_to_resume(&self, program: &str, epoch: usize) {
        let folder = self.folder(program).display().to_string();
        // As a shell takes it. No path has a NUL, which is all that cannot be quoted.
        let folder = shlex::try_quote(&folder).unwrap_or_default();
        let resume = format!("`{program} train --resume --artifact-dir {folder}`");
        note(&match epoch {
            0 => format!("stopped before the first checkpoint; {resume} begins anew"),
            _ => format!("stopped; {resume} continues after epoch {epoch}"),
        });
    }
}
