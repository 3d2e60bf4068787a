//! The pass on a fused backend, as a custom operation.
//!
//! A custom operation gets the only handle of what its caller handed over, and so may write in place. Burn's own fused
//! blocks cannot: they keep a second handle of every input.

use std::{fmt, marker::PhantomData};

use burn::{
    backend::ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr},
    tensor::{Shape, TensorMetadata, backend::Backend, ops::FloatTensor},
};
use burn_fusion::{
    Fusion, FusionBackend, FusionHandle,
    stream::{Operation, OperationStreams},
};

use super::{clipping, floats, program::Clipping};
use crate::{
    LeanBackend, Rule,
    backend::{Clip, Measure, Operands, States, Stepped, Types},
    moment::{Format, Moment},
};

impl<B: FusionBackend + LeanBackend> LeanBackend for Fusion<B> {
    fn has_pass(types: &Types<'_>) -> bool {
        B::has_pass(types)
    }

    fn step_in_place<R: Rule<N>, const N: usize>(
        rule: &R,
        operands: Operands<Self, N>,
    ) -> Stepped<Self, N> {
        let rule = *rule;
        let outputs = vec![operands.weight.shape(); N + 1];
        let (form, inputs) = Form::of(operands);
        let outputs = register::<B, _>("lean_step", inputs, outputs, move |inputs| {
            let stepped = B::step_in_place(&rule, form.with_tensors::<B>(inputs));
            let states = stepped.states.map(floats);
            [stepped.weight].into_iter().chain(states).collect()
        });
        let mut outputs = outputs.into_iter();
        let mut next = || outputs.next().expect("the weight and `N` states");
        Stepped {
            weight: next(),
            states: [(); N].map(|()| Moment::Float(next())),
        }
    }

    fn mean_in_place<M: Measure<N>, const N: usize>(
        measure: &M,
        operands: &Operands<Self, N>,
    ) -> FloatTensor<Self> {
        let measure = *measure;
        let (form, inputs) = Form::of(operands.clone());
        one(register::<B, _>(
            "lean_mean",
            inputs,
            vec![Shape::new([1])],
            move |inputs| vec![B::mean_in_place(&measure, &form.with_tensors(inputs))],
        ))
    }

    fn sum_of_squares(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        one(register::<B, _>(
            "lean_sum_of_squares",
            vec![tensor],
            vec![Shape::new([1])],
            |inputs| vec![B::sum_of_squares(one(inputs))],
        ))
    }
}

/// What operands are apart from their tensors.
#[derive(Clone, Copy)]
struct Form<const N: usize> {
    clipping: Clipping,
    /// The formats of the states, if there are none yet.
    new: Option<[Format; N]>,
}

impl<const N: usize> Form<N> {
    /// The form, and the tensors in their order.
    fn of<B: Backend>(operands: Operands<B, N>) -> (Self, Vec<FloatTensor<B>>) {
        let mut tensors = vec![operands.weight, operands.grad];
        let (clipping, factor) = clipping(operands.clip);
        tensors.extend(factor);
        let new = match operands.states {
            States::New(formats) => Some(formats),
            States::Old(states) => {
                tensors.extend(states.map(floats));
                None
            }
        };
        (Self { clipping, new }, tensors)
    }

    /// The reverse, on another backend.
    fn with_tensors<B: Backend>(self, tensors: Vec<FloatTensor<B>>) -> Operands<B, N> {
        let mut tensors = tensors.into_iter();
        let mut next = || tensors.next().expect("as many as `of` gave");
        Operands {
            weight: next(),
            grad: next(),
            clip: match self.clipping {
                Clipping::None => Clip::None,
                Clipping::Value(threshold) => Clip::Value(threshold),
                Clipping::Factor => Clip::Factor(next()),
            },
            states: match self.new {
                Some(formats) => States::New(formats),
                None => States::Old([(); N].map(|()| Moment::Float(next()))),
            },
        }
    }
}

fn one<T>(tensors: Vec<T>) -> T {
    tensors.into_iter().next().expect("one tensor")
}

/// Queues an operation that makes tensors of these shapes, and of the type of the first input.
fn register<B, F>(
    name: &'static str,
    inputs: Vec<FloatTensor<Fusion<B>>>,
    outputs: Vec<Shape>,
    run: F,
) -> Vec<FloatTensor<Fusion<B>>>
where
    B: FusionBackend,
    F: Fn(Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> + Send + Sync + 'static,
{
    let streams = OperationStreams::with_inputs(&inputs);
    let (client, dtype) = (inputs[0].client.clone(), inputs[0].dtype);
    let outputs: Vec<_> = outputs
        .into_iter()
        .map(|shape| TensorIr::uninit(client.create_empty_handle(), shape, dtype))
        .collect();
    // In their order: where a tensor is there twice, the last one may have its only handle.
    let inputs: Vec<_> = inputs.into_iter().map(|input| input.into_ir()).collect();
    let description = CustomOpIr::new(name, &inputs, &outputs);
    let operation = Custom::<B, F> {
        description: description.clone(),
        run,
        backend: PhantomData,
    };
    client.register(streams, OperationIr::Custom(description), operation)
}

struct Custom<B, F> {
    description: CustomOpIr,
    run: F,
    backend: PhantomData<B>,
}

impl<B, F> fmt::Debug for Custom<B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.description.fmt(f)
    }
}

impl<B, F> Operation<B::FusionRuntime> for Custom<B, F>
where
    B: FusionBackend,
    F: Fn(Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> + Send + Sync,
{
    fn execute(&self, handles: &mut HandleContainer<FusionHandle<B::FusionRuntime>>) {
        let CustomOpIr {
            inputs, outputs, ..
        } = &self.description;
        let inputs = inputs
            .iter()
            .map(|input| handles.get_float_tensor::<B>(input))
            .collect();
        for (output, tensor) in outputs.iter().zip((self.run)(inputs)) {
            handles.register_float_tensor::<B>(&output.id, tensor);
        }
    }
}
