//! Two kinds of optimizer in one type.

use burn::{
    module::Param,
    optim::{
        LearningRate, Optimizer, SimpleOptimizer,
        adaptor::OptimizerAdaptor,
        record::{AdaptorRecord, AdaptorRecordV1},
    },
    record::{PrecisionSettings, Record},
    tensor::{
        Tensor,
        backend::{AutodiffBackend, Backend},
    },
};
use serde::{Deserialize, Serialize};

/// Burn's record of an [`OptimizerAdaptor`]: `HashMap<ParamId, AdaptorRecord<O, B>>`.
type Records<O, B> = <OptimizerAdaptor<O, AnyModule<B>, B> as Optimizer<AnyModule<B>, B>>::Record;

type AnyModule<B> = Param<Tensor<B, 1>>;

/// One of two kinds of optimizer, or the state of one. With it, different kinds of optimizer can
/// step the parameters of one model and share one record.
///
/// It is a [`SimpleOptimizer`] that forwards every step to the one that it holds, bit for bit. Its
/// state remembers which kind made it. For three kinds, nest: `Either<A, Either<B, C>>`.
///
/// # Panics
///
/// A step panics if the state was made by the other kind: the state would be lost silently, and
/// Burn's trait cannot return an error. That happens if a parameter is moved from one kind to the
/// other, or if a record of another assignment is loaded. Step the parameter with the kind that
/// made its state, or remove the state from the record, so that it starts over:
/// [`split_records`](Self::split_records).
///
/// # Example
///
/// ```
/// use burn::{
///     backend::Flex,
///     optim::{AdamW, AdamWConfig, Muon, MuonConfig, SimpleOptimizer},
///     tensor::Tensor,
/// };
/// use burn_gradient_release::Either;
///
/// type Optim = Either<Muon<Flex>, AdamW>;
/// # fn adam_w() -> AdamW {
/// #     type B = burn::backend::Autodiff<Flex>;
/// #     let adaptor = AdamWConfig::new().init::<B, burn::nn::Linear<B>>();
/// #     adaptor.optim().clone()
/// # }
///
/// let for_matrices = Optim::Left(MuonConfig::new().build());
/// let for_the_rest = Optim::Right(adam_w());
///
/// let device = Default::default();
/// let ones = || Tensor::<Flex, 2>::ones([2, 2], &device);
/// let (_, state) = for_matrices.step(0.1, ones(), ones(), None);
/// assert!(matches!(state, Some(Either::Left(_))));
/// let (_, state) = for_the_rest.step(0.1, ones(), ones(), None);
/// assert!(matches!(state, Some(Either::Right(_))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Either<A, B> {
    /// The first kind.
    Left(A),
    /// The second kind.
    Right(B),
}

impl<A, B> Either<A, B> {
    fn side(&self) -> &'static str {
        match self {
            Self::Left(_) => "Left",
            Self::Right(_) => "Right",
        }
    }

    /// Splits the record of an optimizer into the records of two [`OptimizerAdaptor`]s of plain
    /// Burn, each with the states of its own kind.
    pub fn split_records<BK>(records: Records<Self, BK>) -> (Records<A, BK>, Records<B, BK>)
    where
        A: SimpleOptimizer<BK::InnerBackend>,
        B: SimpleOptimizer<BK::InnerBackend>,
        BK: AutodiffBackend,
    {
        let mut left = Records::<A, BK>::default();
        let mut right = Records::<B, BK>::default();
        for (param, AdaptorRecord::V1(record)) in records {
            match split(record) {
                Either::Left(record) => {
                    left.insert(param, AdaptorRecord::V1(record));
                }
                Either::Right(record) => {
                    right.insert(param, AdaptorRecord::V1(record));
                }
            }
        }
        (left, right)
    }
}

impl<A, B, BK> SimpleOptimizer<BK> for Either<A, B>
where
    A: SimpleOptimizer<BK>,
    B: SimpleOptimizer<BK>,
    BK: Backend,
{
    type State<const D: usize> = Either<A::State<D>, B::State<D>>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<BK, D>,
        grad: Tensor<BK, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<BK, D>, Option<Self::State<D>>) {
        match (self, state) {
            (Self::Left(optim), None) => left(optim.step(lr, tensor, grad, None)),
            (Self::Right(optim), None) => right(optim.step(lr, tensor, grad, None)),
            (Self::Left(optim), Some(Either::Left(state))) => {
                left(optim.step(lr, tensor, grad, Some(state)))
            }
            (Self::Right(optim), Some(Either::Right(state))) => {
                right(optim.step(lr, tensor, grad, Some(state)))
            }
            (optim, Some(state)) => panic!(
                "gradient release: a parameter of shape {:?} is to be stepped by the optimizer \
                 `Either::{}`, but its state is of the optimizer `Either::{}`; step it with the \
                 kind of optimizer that made its state, as when the record was saved, or take its \
                 state out of the record (`Either::split_records`) to begin with a new one",
                tensor.dims(),
                optim.side(),
                state.side(),
            ),
        }
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &BK::Device) -> Self::State<D> {
        match state {
            Either::Left(state) => Either::Left(A::to_device(state, device)),
            Either::Right(state) => Either::Right(B::to_device(state, device)),
        }
    }
}

fn left<T, A, B>((tensor, state): (T, Option<A>)) -> (T, Option<Either<A, B>>) {
    (tensor, state.map(Either::Left))
}

fn right<T, A, B>((tensor, state): (T, Option<B>)) -> (T, Option<Either<A, B>>) {
    (tensor, state.map(Either::Right))
}

impl<A, B, BK> Record<BK> for Either<A, B>
where
    A: Record<BK>,
    B: Record<BK>,
    BK: Backend,
{
    type Item<S: PrecisionSettings> = Either<A::Item<S>, B::Item<S>>;

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        match self {
            Self::Left(record) => Either::Left(record.into_item()),
            Self::Right(record) => Either::Right(record.into_item()),
        }
    }

    fn from_item<S: PrecisionSettings>(item: Self::Item<S>, device: &BK::Device) -> Self {
        match item {
            Either::Left(item) => Self::Left(A::from_item(item, device)),
            Either::Right(item) => Self::Right(B::from_item(item, device)),
        }
    }
}

/// Burn's record of one parameter has a variant for each rank.
macro_rules! by_rank {
    ($($rank:ident)*) => {
        fn split<A, B, BK>(
            record: AdaptorRecordV1<Either<A, B>, BK>,
        ) -> Either<AdaptorRecordV1<A, BK>, AdaptorRecordV1<B, BK>>
        where
            A: SimpleOptimizer<BK>,
            B: SimpleOptimizer<BK>,
            BK: Backend,
        {
            match record {
                $(
                    AdaptorRecordV1::$rank(Either::Left(state)) => {
                        Either::Left(AdaptorRecordV1::$rank(state))
                    }
                    AdaptorRecordV1::$rank(Either::Right(state)) => {
                        Either::Right(AdaptorRecordV1::$rank(state))
                    }
                )*
            }
        }
    };
}

by_rank!(Rank0 Rank1 Rank2 Rank3 Rank4 Rank5 Rank6 Rank7 Rank8);
