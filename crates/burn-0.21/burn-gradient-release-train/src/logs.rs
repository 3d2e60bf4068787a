//! Where processes that train together log.

use std::path::{Path, PathBuf};

use burn::train::{
    FileApplicationLoggerInstaller, LearningComponentsTypes, SupervisedTraining,
    logger::FileMetricLogger, renderer::CliMetricsRenderer,
};
use burn_gradient_release_data_parallel::Replicas;

/// The folder in which this process logs, of a training in `directory`: that folder for the first
/// one, and `rank-1` in it for the second.
pub fn log_folder(directory: impl AsRef<Path>, replicas: &Replicas) -> PathBuf {
    let directory = directory.as_ref();
    match replicas.rank() {
        0 => directory.to_path_buf(),
        rank => directory.join(format!("rank-{rank}")),
    }
}

/// Lets each process of a training in `directory` log in a [folder](log_folder) of its own, and
/// none of them take the terminal. Checkpoints stay in `directory`, where all of them find them.
///
/// Burn's logs would truncate each other's files, and its terminal UI needs a terminal for itself:
/// `mpirun` gives each process a stdout that is one. Call it before other loggers of metrics and
/// another renderer are set.
///
/// ```no_run
/// # use burn::train::{LearningComponentsTypes, SupervisedTraining};
/// # use burn_gradient_release_data_parallel::Replicas;
/// # fn of_replica<LC: LearningComponentsTypes>(
/// #     training: SupervisedTraining<LC>,
/// #     replicas: &Replicas,
/// # ) -> SupervisedTraining<LC> {
/// use burn_gradient_release_train::log_apart;
///
/// // `SupervisedTraining::new("artifacts", train, valid)`, and a strategy `with_replicas`.
/// log_apart(training, "artifacts", replicas)
/// # }
/// ```
pub fn log_apart<LC: LearningComponentsTypes>(
    training: SupervisedTraining<LC>,
    directory: impl AsRef<Path>,
    replicas: &Replicas,
) -> SupervisedTraining<LC> {
    let logs = log_folder(directory, replicas);
    let log = FileApplicationLoggerInstaller::new(logs.join("experiment.log"));
    training
        .with_metric_logger(FileMetricLogger::new(&logs))
        .with_application_logger(Some(Box::new(log)))
        .renderer(CliMetricsRenderer::new())
}
