//! The weights of a model, taken out of it, to be compared bit by bit.

use std::hash::{DefaultHasher, Hash, Hasher};

use burn::module::{Module, ModuleVisitor, Param};
use burn::record::{
    BinBytesRecorder, BinFileRecorder, FullPrecisionSettings, NamedMpkBytesRecorder,
    NamedMpkFileRecorder, Record, Recorder,
};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use serde_json::Value;

/// Every float parameter and running state, by id, in the order of the module.
#[derive(Clone, Debug)]
pub(crate) struct Weights(Vec<(u64, TensorData)>);

impl Weights {
    /// Weights of `model` as they are now.
    pub(crate) fn of<B: Backend, M: Module<B>>(model: &M) -> Self {
        struct Collect(Vec<(u64, TensorData)>);

        impl<B: Backend> ModuleVisitor<B> for Collect {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
                self.0.push((param.id.val(), param.val().into_data()));
            }
        }

        let mut collect = Collect(Vec::new());
        model.visit(&mut collect);
        assert!(
            !collect.0.is_empty(),
            "a model without weights proves nothing"
        );
        Self(collect.0)
    }

    /// Equal to the last bit, NaN included.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().zip(&other.0).all(|((id, a), (id_b, b))| {
                id == id_b
                    && a.shape == b.shape
                    && a.dtype == b.dtype
                    && a.as_bytes() == b.as_bytes()
            })
    }

    /// Fails unless the weights are equal to the last bit.
    #[track_caller]
    pub(crate) fn assert_same(&self, expected: &Self, context: impl core::fmt::Display) {
        assert!(
            self.same(expected),
            "{context}: weights differ by {:e}; parameters {:?}",
            self.distance(expected),
            self.differing(expected),
        );
    }

    /// Fails unless every weight is as near, relative above one, as `tolerance` says; at zero,
    /// unless they are equal to the last bit.
    #[track_caller]
    pub(crate) fn assert_near(
        &self,
        expected: &Self,
        tolerance: f32,
        context: impl core::fmt::Display,
    ) {
        if tolerance == 0.0 {
            return self.assert_same(expected, context);
        }
        let distance = self.distance(expected);
        assert!(
            distance <= tolerance,
            "{context}: weights differ by {distance:e}, more than {tolerance:e}; parameters {:?}",
            self.differing(expected),
        );
    }

    /// Fails if the weights are equal: the guard against comparing a thing with itself.
    #[track_caller]
    pub(crate) fn assert_moved(&self, before: &Self, context: impl core::fmt::Display) {
        assert!(!self.same(before), "{context}: nothing was trained");
    }

    /// The largest difference, relative for values above one.
    pub(crate) fn distance(&self, other: &Self) -> f32 {
        assert_eq!(self.0.len(), other.0.len(), "not the same model");
        let mut largest = 0.0f32;
        for ((_, a), (_, b)) in self.0.iter().zip(&other.0) {
            assert_eq!(a.shape, b.shape);
            for (a, b) in a.iter::<f32>().zip(b.iter::<f32>()) {
                let difference = (a - b).abs() / b.abs().max(1.0);
                largest = if difference.is_nan() {
                    f32::INFINITY
                } else {
                    largest.max(difference)
                };
            }
        }
        largest
    }

    /// The distance to that many of `whole`'s tensors, from `place` on, for a part of a model.
    pub(crate) fn distance_within(&self, whole: &Self, place: usize) -> f32 {
        self.distance(&Self(whole.0[place..place + self.0.len()].to_vec()))
    }

    fn differing(&self, other: &Self) -> Vec<usize> {
        let pairs = self.0.iter().zip(&other.0).enumerate();
        pairs
            .filter(|(_, (a, b))| a.0 != b.0 || a.1.as_bytes() != b.1.as_bytes())
            .map(|(place, _)| place)
            .collect()
    }

    /// Number of parameters that differ in any bit.
    pub(crate) fn changed(&self, before: &Self) -> usize {
        self.differing(before).len()
    }

    /// A number that stands for all the bits, where holding the weights would cost memory.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (id, data) in &self.0 {
            (id, data.as_bytes()).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The largest absolute value.
    pub(crate) fn largest(&self) -> f32 {
        let values = self.0.iter().flat_map(|(_, data)| data.iter::<f32>());
        values.map(f32::abs).fold(0.0, f32::max)
    }

    /// Whether every value is finite.
    pub(crate) fn finite(&self) -> bool {
        self.0
            .iter()
            .all(|(_, data)| data.iter::<f32>().all(f32::is_finite))
    }

    /// Number of tensors.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The model as bytes, by Burn's own recorder: weights, running states and parameter ids.
pub(crate) fn save<B: Backend, M: Module<B>>(model: M) -> Vec<u8> {
    BinBytesRecorder::<FullPrecisionSettings>::default()
        .record(model.into_record(), ())
        .expect("the record is plain data")
}

/// The reverse of [`save`], onto any backend.
pub(crate) fn load<B: Backend, M: Module<B>>(model: M, bytes: &[u8], device: &B::Device) -> M {
    let record = Recorder::<B>::load(
        &BinBytesRecorder::<FullPrecisionSettings>::default(),
        bytes.to_vec(),
        device,
    )
    .expect("the bytes come from `save`");
    model.load_record(record)
}

/// A record as text: moments, step counts and all, in an order that does not depend on hashing.
pub(crate) fn readable<B: Backend, X: Record<B>>(record: X) -> Value {
    serde_json::to_value(record.into_item::<FullPrecisionSettings>()).expect("plain data")
}

/// A record as another backend reads it from each of Burn's recorders that carry optimizers.
pub(crate) fn through_recorders<A: Backend, B: Backend, X: Record<A>, Y: Record<B>>(
    record: impl Fn() -> X,
) -> [Y; 4] {
    let folder = tempfile::tempdir().expect("a temporary directory");
    macro_rules! through {
        ($recorder:ident, $to:expr, $from:expr) => {{
            let recorder = $recorder::<FullPrecisionSettings>::default();
            let saved = Recorder::<A>::record(&recorder, record(), $to).expect("recorded");
            let from = $from(saved);
            Recorder::<B>::load(&recorder, from, &Default::default()).expect("loaded")
        }};
    }
    let file = |name| folder.path().join(name);
    [
        through!(BinBytesRecorder, (), |bytes| bytes),
        through!(NamedMpkBytesRecorder, (), |bytes| bytes),
        through!(BinFileRecorder, file("bin"), |()| file("bin")),
        through!(NamedMpkFileRecorder, file("named"), |()| file("named")),
    ]
}
