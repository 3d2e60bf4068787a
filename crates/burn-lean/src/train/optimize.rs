//! Whether a model's `TrainStep::optimize` is Burn's, which a trait does not tell.

use burn::Tensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{GradientsParams, LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::Device;
use burn::train::TrainStep;

use crate::optimizer::with_value;
use crate::path::params_of;

/// Weight, gradient and rate that `optimize` is given, and the weight that it is to return: numbers
/// of any float type.
const GIVEN: [f32; 3] = [4.0, 2.0, 1.0];
const STEPPED: f32 = 8.0;

/// Whether `optimize` does what Burn's does with a copy of the model: steps each parameter once,
/// with the weight, the gradient and the rate that it is given, and changes nothing after that.
pub(super) fn is_burns<M: TrainStep + Module>(model: &M) -> bool {
    // Reading them initializes parameters: of a copy that is read first, with other random numbers.
    let params = params_of(model);
    let trained = params.iter().filter(|param| param.is_trained);
    let trained = trained.filter(|param| param.shape.num_elements() > 0);
    let mut mark = Mark(GradientsParams::new());
    let marked = model.clone().map(&mut mark);
    let mut optim = ModuleOptimizer::from(Probe);
    let [_, _, rate] = GIVEN.map(f64::from);
    let mut count = Count(0);
    let stepped = marked.optimize(&mut optim, rate.into(), mark.0);
    stepped.visit(&mut count);
    count.0 == trained.count()
}

/// Gives trained parameters a weight and a gradient that take no memory.
struct Mark(GradientsParams);

impl ModuleMapper for Mark {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        let id = param.id;
        with_value(param, |weight| {
            let [given, grad, _] = GIVEN;
            self.0.register(id, filled(&weight, grad));
            filled(&weight, given)
        })
    }
}

/// Steps a weight to a number that tells what it was given.
#[derive(Clone)]
struct Probe;

impl Optimizer for Probe {
    type State<const D: usize> = ();

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        _: Option<()>,
    ) -> (Tensor<D>, Option<()>) {
        let is_given = [number(&tensor), number(&grad), lr as f32] == GIVEN;
        let stepped = if is_given { STEPPED } else { f32::NAN };
        (filled(&tensor, stepped), None)
    }

    fn to_device<const D: usize>((): (), _: &Device) {}
}

/// Counts the trained parameters that were stepped, and not changed since.
struct Count(usize);

impl ModuleVisitor for Count {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let is_stepped = param.is_require_grad() && number(&param.base()) == STEPPED;
        self.0 += usize::from(is_stepped);
    }
}

fn filled<const D: usize>(like: &Tensor<D>, number: f32) -> Tensor<D> {
    let one = Tensor::<D>::full([1; D], number, (&like.device(), like.dtype()));
    one.expand(like.shape())
}

/// The number that all elements are, or NaN.
fn number<const D: usize>(tensor: &Tensor<D>) -> f32 {
    let tensor = tensor.clone().inner();
    if tensor.shape().num_elements() == 0 {
        return f32::NAN;
    }
    let [least, most] = [tensor.clone().min(), tensor.max()].map(|it| it.into_scalar::<f32>());
    if least == most { least } else { f32::NAN }
}
