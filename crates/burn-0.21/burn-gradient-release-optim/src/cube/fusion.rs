//! The pass on a fused backend, as a custom operation.
//!
//! A custom operation gets the only handle to the buffers of its caller, and so may write in place.
//! Burn's own fused blocks cannot: they keep a second handle of every input.

use std::{fmt, marker::PhantomData};

use burn::{
    backend::ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr},
    tensor::{
        DType, Shape, TensorMetadata,
        backend::Backend,
        ops::{FloatTensor, IntTensor},
    },
};
use burn_fusion::{
    Fusion, FusionBackend, FusionHandle, FusionTensor,
    stream::{Operation, OperationStreams},
};

use lean_arithmetic::optim::{Clip, Measure, Noise, Rule, Split, words};

use crate::{
    LeanBackend, RoundToBf16,
    backend::{Operands, States, Stepped, Types},
    moment::{EightBit, Format, Moment},
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
        let (form, inputs) = Form::of(operands);
        let outputs = form.stepped();
        let inner = form.clone();
        let outputs = register::<B, _>("lean_step", inputs, outputs, move |inputs| {
            let stepped = B::step_in_place(&rule, inner.operands(inputs));
            let mut outputs = vec![FloatOrInt::Float(stepped.weight)];
            outputs.extend(stepped.states.map(part));
            outputs
        });
        let mut outputs = outputs.into_iter();
        Stepped {
            weight: float(&mut outputs),
            states: form.states(&mut outputs),
        }
    }

    fn mean_in_place<M: Measure<N>, const N: usize>(
        measure: &M,
        operands: &Operands<Self, N>,
    ) -> FloatTensor<Self> {
        let measure = *measure;
        let (form, inputs) = Form::of(operands.clone());
        float_of::<B>("lean_mean", inputs, Shape::new([1]), move |inputs| {
            B::mean_in_place(&measure, &form.operands(inputs))
        })
    }
}

impl<B: FusionBackend + RoundToBf16> RoundToBf16 for Fusion<B> {
    fn round_stochastically(tensor: FloatTensor<Self>, noise: Noise) -> FloatTensor<Self> {
        let shape = tensor.shape();
        let inputs = vec![FloatOrInt::Float(tensor)];
        float_of::<B>("lean_round_stochastically", inputs, shape, move |inputs| {
            B::round_stochastically(float(&mut inputs.into_iter()), noise)
        })
    }

    fn split(tensor: FloatTensor<Self>) -> (FloatTensor<Self>, IntTensor<Self>) {
        let shape = tensor.shape();
        let words = Shape::new([Split::Bf16In32.words(shape.num_elements())]);
        let inputs = vec![FloatOrInt::Float(tensor)];
        let outputs = vec![(shape, DType::F32), (words, DType::I32)];
        let outputs = register::<B, _>("lean_split", inputs, outputs, |inputs| {
            let (nearest, low) = B::split(float(&mut inputs.into_iter()));
            vec![FloatOrInt::Float(nearest), FloatOrInt::Int(low)]
        });
        let mut outputs = outputs.into_iter();
        (float(&mut outputs), int(&mut outputs))
    }

    fn rejoin(nearest: FloatTensor<Self>, low: IntTensor<Self>) -> FloatTensor<Self> {
        let shape = nearest.shape();
        let inputs = vec![FloatOrInt::Float(nearest), FloatOrInt::Int(low)];
        float_of::<B>("lean_rejoin", inputs, shape, |inputs| {
            let mut inputs = inputs.into_iter();
            B::rejoin(float(&mut inputs), int(&mut inputs))
        })
    }
}

/// A tensor that an operation takes or leaves.
enum FloatOrInt<B: Backend> {
    Float(FloatTensor<B>),
    Int(IntTensor<B>),
}

fn float<B: Backend>(parts: &mut impl Iterator<Item = FloatOrInt<B>>) -> FloatTensor<B> {
    match parts.next() {
        Some(FloatOrInt::Float(tensor)) => tensor,
        _ => unreachable!("a form has its parts in one order"),
    }
}

fn int<B: Backend>(parts: &mut impl Iterator<Item = FloatOrInt<B>>) -> IntTensor<B> {
    match parts.next() {
        Some(FloatOrInt::Int(tensor)) => tensor,
        _ => unreachable!("a form has its parts in one order"),
    }
}

fn part<B: Backend>(state: Moment<B>) -> FloatOrInt<B> {
    match state {
        Moment::Float(floats) => FloatOrInt::Float(floats),
        Moment::EightBit(EightBit { words, .. }) => FloatOrInt::Int(words),
    }
}

/// The operands without their tensors.
#[derive(Clone)]
struct Form<const N: usize> {
    clip: Clip,
    shape: Shape,
    formats: [Format; N],
    /// Whether there are no states yet.
    first: bool,
    noise: Option<Noise>,
}

impl<const N: usize> Form<N> {
    /// The form, and the tensors in their order.
    fn of<B: Backend>(operands: Operands<B, N>) -> (Self, Vec<FloatOrInt<B>>) {
        let shape = operands.weight.shape();
        let mut tensors = vec![
            FloatOrInt::Float(operands.weight),
            FloatOrInt::Float(operands.grad),
        ];
        let (first, formats) = match operands.states {
            States::New(formats) => (true, formats),
            States::Old(states) => {
                let formats = states.each_ref().map(Moment::format);
                tensors.extend(states.map(part));
                (false, formats)
            }
        };
        let form = Self {
            clip: operands.clip,
            shape,
            formats,
            first,
            noise: operands.noise,
        };
        (form, tensors)
    }

    /// The reverse, on another backend.
    fn operands<B: Backend>(&self, parts: Vec<FloatOrInt<B>>) -> Operands<B, N> {
        let mut parts = parts.into_iter();
        Operands {
            weight: float(&mut parts),
            grad: float(&mut parts),
            clip: self.clip,
            states: match self.first {
                true => States::New(self.formats),
                false => States::Old(self.states(&mut parts)),
            },
            noise: self.noise,
        }
    }

    fn states<B: Backend>(
        &self,
        parts: &mut impl Iterator<Item = FloatOrInt<B>>,
    ) -> [Moment<B>; N] {
        self.formats.map(|format| match format {
            Format::Float(_) => Moment::Float(float(parts)),
            Format::EightBit(kind) => Moment::EightBit(EightBit {
                words: int(parts),
                shape: self.shape.clone(),
                kind,
            }),
        })
    }

    /// The shapes and types of the outputs of a step: the weight and the states.
    fn stepped(&self) -> Vec<(Shape, DType)> {
        let numbers = self.shape.num_elements();
        let states = self.formats.iter().map(|format| match format {
            Format::Float(dtype) => (self.shape.clone(), *dtype),
            Format::EightBit(_) => (Shape::new([words(numbers)]), DType::I32),
        });
        [(self.shape.clone(), DType::F32)]
            .into_iter()
            .chain(states)
            .collect()
    }
}

/// Queues an operation that makes one tensor of this shape.
fn float_of<B: FusionBackend>(
    name: &'static str,
    inputs: Vec<FloatOrInt<Fusion<B>>>,
    shape: Shape,
    run: impl Fn(Vec<FloatOrInt<B>>) -> FloatTensor<B> + Send + Sync + 'static,
) -> FloatTensor<Fusion<B>> {
    let outputs = vec![(shape, DType::F32)];
    let run = move |inputs| vec![FloatOrInt::Float(run(inputs))];
    float(&mut register::<B, _>(name, inputs, outputs, run).into_iter())
}

/// Queues an operation that makes tensors of these shapes and types.
fn register<B, F>(
    name: &'static str,
    inputs: Vec<FloatOrInt<Fusion<B>>>,
    outputs: Vec<(Shape, DType)>,
    run: F,
) -> Vec<FloatOrInt<Fusion<B>>>
where
    B: FusionBackend,
    F: Fn(Vec<FloatOrInt<B>>) -> Vec<FloatOrInt<B>> + Send + Sync + 'static,
{
    let inputs: Vec<FusionTensor<_>> = inputs
        .into_iter()
        .map(|(FloatOrInt::Float(tensor) | FloatOrInt::Int(tensor))| tensor)
        .collect();
    let streams = OperationStreams::with_inputs(&inputs);
    let client = inputs[0].client.clone();
    let outputs: Vec<_> = outputs
        .into_iter()
        .map(|(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype))
        .collect();
    // In order: if a tensor is given twice, only the last one may have its only handle.
    let inputs: Vec<_> = inputs.into_iter().map(|input| input.into_ir()).collect();
    let description = CustomOpIr::new(name, &inputs, &outputs);
    let operation = Custom::<B, F> {
        description: description.clone(),
        run,
        backend: PhantomData,
    };
    let outputs = client.register(streams, OperationIr::Custom(description), operation);
    let part = |tensor: FusionTensor<_>| match tensor.dtype.is_float() {
        true => FloatOrInt::Float(tensor),
        false => FloatOrInt::Int(tensor),
    };
    outputs.into_iter().map(part).collect()
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
    F: Fn(Vec<FloatOrInt<B>>) -> Vec<FloatOrInt<B>> + Send + Sync,
{
    fn execute(&self, handles: &mut HandleContainer<FusionHandle<B::FusionRuntime>>) {
        let CustomOpIr {
            inputs, outputs, ..
        } = &self.description;
        let inputs = inputs
            .iter()
            .map(|input| match input.dtype.is_float() {
                true => FloatOrInt::Float(handles.get_float_tensor::<B>(input)),
                false => FloatOrInt::Int(handles.get_int_tensor::<B>(input)),
            })
            .collect();
        for (output, tensor) in outputs.iter().zip((self.run)(inputs)) {
            match tensor {
                FloatOrInt::Float(tensor) => handles.register_float_tensor::<B>(&output.id, tensor),
                FloatOrInt::Int(tensor) => handles.register_int_tensor::<B>(&output.id, tensor),
            }
        }
    }
}
