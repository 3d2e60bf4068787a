//! Custom operations of user code.

use std::array;

use burn::tensor::{
    backend::{Backend, BackendTypes},
    ops::FloatTensor,
};
use burn_autodiff::Autodiff;

use crate::{lower::operands::Arguments, lower::raise::Nodes, tensor::ReleaseTensor};

impl<B: Backend> ReleaseTensor<B> {
    /// Applies an operation of the autodiff backend. This brings an operation of your own, with its
    /// own backward, to [`GradientRelease`](crate::GradientRelease).
    ///
    /// `operation` is given the operands as tensors of [`Autodiff`], whatever its checkpointing
    /// strategy, parameters among them; its result is a tensor of `GradientRelease`. Every tracked
    /// tensor that it uses has to be among the operands.
    ///
    /// Inside [`checkpoint`](crate::checkpoint) it runs a second time in the backward pass.
    ///
    /// Parameters that it consumes are stepped in time if it is one node on the tape. Inside an
    /// operation of several nodes they may be used anywhere, so they are stepped at the end of
    /// backward.
    ///
    /// To implement a trait of your own, which `Autodiff<B, C>` implements as in Burn's book, for
    /// `GradientRelease<Autodiff<B, C>>`, make one such call in each method:
    ///
    /// ```
    /// use burn::{
    ///     backend::{Autodiff, Flex, autodiff::checkpoint::strategy::CheckpointStrategy},
    ///     tensor::{Tensor, TensorPrimitive, backend::Backend, ops::FloatTensor},
    /// };
    /// use burn_gradient_release::{GradientRelease, ReleaseTensor};
    ///
    /// trait Ops: Backend {
    ///     fn scaled_add(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self>;
    /// }
    ///
    /// # // A real one would register a backward of its own.
    /// impl<C: CheckpointStrategy> Ops for Autodiff<Flex, C> {
    ///     fn scaled_add(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
    ///         // ...
    /// #       Self::float_add(lhs, Self::float_mul_scalar(rhs, 0.5.into()))
    ///     }
    /// }
    ///
    /// impl<C: CheckpointStrategy> Ops for GradientRelease<Autodiff<Flex, C>> {
    ///     fn scaled_add(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
    ///         ReleaseTensor::apply([lhs, rhs], |[lhs, rhs]| {
    ///             Autodiff::<Flex, C>::scaled_add(lhs, rhs)
    ///         })
    ///     }
    /// }
    /// # use burn::tensor::ops::FloatTensorOps;
    /// # type R = GradientRelease<Autodiff<Flex>>;
    /// # let one = || Tensor::<R, 1>::ones([2], &Default::default()).into_primitive().tensor();
    /// # let sum = TensorPrimitive::Float(R::scaled_add(one(), one()));
    /// # let sum = Tensor::<R, 1>::from_primitive(sum);
    /// # assert_eq!(sum.into_data().to_vec::<f32>().unwrap(), [1.5, 1.5]);
    /// ```
    pub fn apply<const N: usize>(
        operands: [Self; N],
        operation: impl Fn(
            [<Autodiff<B> as BackendTypes>::FloatTensorPrimitive; N],
        ) -> FloatTensor<Autodiff<B>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let mut arguments = Arguments::new();
        operands
            .into_iter()
            .for_each(|tensor| arguments.push(tensor));
        arguments.apply(
            "custom operation",
            Nodes::Unknown,
            move |mut operands| {
                operation(array::from_fn(|_| {
                    operands.next().expect("as many as were given")
                }))
            },
            |result, raise| raise(result),
        )
    }
}
