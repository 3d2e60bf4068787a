//! Schedulers of any type.

use std::any::Any;

use burn::{
    lr_scheduler::LrScheduler,
    optim::LearningRate,
    record::{FullPrecisionSettings, NamedMpkBytesRecorder, Recorder, RecorderError},
};

use super::tensorless::Tensorless;

/// A scheduler of any type: Burn's trait is not object safe.
pub(crate) trait AnyScheduler: Any + Send + Sync {
    fn next(&mut self) -> LearningRate;
    fn save(&self) -> Vec<u8>;
    fn load(&mut self, record: Vec<u8>) -> Result<(), RecorderError>;
    fn boxed_clone(&self) -> Box<dyn AnyScheduler>;
}

/// Has named fields, and returns an error if they do not fit.
type Bytes = NamedMpkBytesRecorder<FullPrecisionSettings>;

impl<S: LrScheduler + 'static> AnyScheduler for S {
    fn next(&mut self) -> LearningRate {
        self.step()
    }

    fn save(&self) -> Vec<u8> {
        let record = self.to_record::<Tensorless>();
        Recorder::<Tensorless>::record(&Bytes::default(), record, ())
            .expect("numbers can be written to memory")
    }

    fn load(&mut self, record: Vec<u8>) -> Result<(), RecorderError> {
        let device = Default::default();
        let record = Recorder::<Tensorless>::load(&Bytes::default(), record, &device)?;
        *self = self.clone().load_record::<Tensorless>(record);
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn AnyScheduler> {
        Box::new(self.clone())
    }
}
