//! The command line of a program whose options are the settings of its run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Id, Parser};

use crate::exit::note;

/// The options that say where the run of a program is, and whether it goes on.
#[derive(Clone, Debug, Args)]
pub struct FolderOptions {
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
}

impl FolderOptions {
    /// The folder of a run of this program.
    pub fn folder(&self, program: &str) -> PathBuf {
        let usual = || Path::new("artifacts").join(program);
        self.artifact_dir.clone().unwrap_or_else(usual)
    }
}

/// Reads the options of a program, or of its subcommand, and the names of those that were given: a run that is
/// [resumed](crate::resumed) keeps its settings but for those.
///
/// # Errors
///
/// The exit code of a program that ends here: it has printed an error, in one line, or the help.
pub fn command_line<P: Parser>() -> Result<(P, Vec<String>), ExitCode> {
    let read = || {
        let matches = P::command().try_get_matches()?;
        let of_options = matches
            .subcommand()
            .map_or(&matches, |(_, matches)| matches);
        Ok((P::from_arg_matches(&matches)?, given_options(of_options)))
    };
    read().map_err(|error| usage(&error))
}

/// The names of the options that were given, and not left at their defaults.
pub fn given_options(options: &ArgMatches) -> Vec<String> {
    let names = options.ids().map(Id::as_str);
    let was_given = |name: &&str| options.value_source(name) == Some(ValueSource::CommandLine);
    names.filter(was_given).map(String::from).collect()
}

/// Help and version as clap formats them; an error in one line. The exit code of the program.
fn usage(error: &clap::Error) -> ExitCode {
    if let ErrorKind::DisplayHelp | ErrorKind::DisplayVersion = error.kind() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    note(&first.split_whitespace().collect::<Vec<_>>().join(" "));
    ExitCode::from(2)
}
