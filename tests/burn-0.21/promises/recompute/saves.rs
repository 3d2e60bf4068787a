//! What plain Burn keeps of each operation for its backward, measured, is what the planner's table
//! says.

use std::cell::RefCell;
use std::collections::HashMap;

use burn::backend::Autodiff;
use burn::tensor::ops::{
    ActivationOps, BoolTensor, BoolTensorOps, ConvOptions, ConvTransposeOptions, DeformConvOptions,
    FloatTensor, FloatTensorOps, IntTensor, IntTensorOps, InterpolateMode, InterpolateOptions,
    ModuleOps,
};
use burn::tensor::{FloatDType, IndexingUpdateOp, IntDType, Shape, Slice, TensorMetadata};

use table::Saves;

use crate::harness::prelude::*;

/// The table itself, which is private to its crate.
#[path = "../../../../crates/burn-0.21/burn-gradient-release/src/planner/saves.rs"]
mod table;

type A = Autodiff<Flex>;
type T = FloatTensor<A>;

/// Nodes of the tape, shapes and scalars. Operands and results are larger by far.
const SLACK: usize = 4 * 1024;

/// Makes the operands of an operation.
type Operands<'a> = &'a mut dyn FnMut(&[usize]) -> T;

struct Case {
    name: &'static str,
    run: Box<dyn Fn(Operands<'_>) -> T>,
}

fn case(name: &'static str, run: impl Fn(Operands<'_>) -> T + 'static) -> Case {
    Case {
        name,
        run: Box::new(run),
    }
}

thread_local! {
    /// What operations are given beside floats, by shape: nobody counts it as kept.
    static INDICES: RefCell<HashMap<Vec<usize>, IntTensor<Flex>>> = RefCell::default();
    static MASKS: RefCell<HashMap<Vec<usize>, BoolTensor<Flex>>> = RefCell::default();
}

/// Indices from 0 on, below 128.
fn indices(shape: &[usize]) -> IntTensor<Flex> {
    let make = || {
        let count = shape.iter().product::<usize>() as i64;
        let values: Vec<i64> = (0..count).map(|index| index % 128).collect();
        Flex::int_from_data(TensorData::new(values, shape.to_vec()), &Default::default())
    };
    INDICES.with_borrow_mut(|known| known.entry(shape.to_vec()).or_insert_with(make).clone())
}

fn mask(shape: &[usize]) -> BoolTensor<Flex> {
    let make = || {
        let count: usize = shape.iter().product();
        let values: Vec<bool> = (0..count).map(|index| index % 2 == 0).collect();
        Flex::bool_from_data(TensorData::new(values, shape.to_vec()), &Default::default())
    };
    MASKS.with_borrow_mut(|known| known.entry(shape.to_vec()).or_insert_with(make).clone())
}

/// A case for each operation that can be on the tape.
fn cases() -> Vec<Case> {
    const SQUARE: &[usize] = &[128, 128];
    const IMAGE: &[usize] = &[2, 8, 32, 32];

    let mut cases = Vec::new();
    macro_rules! unary {
        ($($name:ident($($argument:expr),*))*) => {
            $(cases.push(case(stringify!($name), |of| A::$name(of(SQUARE) $(, $argument)*)));)*
        };
    }
    macro_rules! binary {
        ($($name:ident($($argument:expr),*))*) => {
            $(cases.push(case(stringify!($name), |of| {
                A::$name(of(SQUARE), of(SQUARE) $(, $argument)*)
            }));)*
        };
    }
    macro_rules! other {
        ($($name:ident: |$of:ident| $run:expr;)*) => {
            $(cases.push(case(stringify!($name), |$of| $run));)*
        };
    }
    unary! {
        float_abs() float_acos() float_acosh() float_add_scalar(2.0.into()) float_asin()
        float_asinh() float_atan() float_atanh() float_cast(FloatDType::F64) float_ceil()
        float_cos() float_cosh() float_cummax(0) float_cummin(0) float_cumprod(0) float_cumsum(0)
        float_detach() float_div_scalar(2.0.into()) float_erf() float_exp() float_flip(&[0])
        float_floor() float_log() float_log1p() float_mask_fill(mask(SQUARE), 2.0.into())
        float_mean() float_mean_dim(0)
        float_mul_scalar(2.0.into()) float_neg() float_permute(&[1, 0])
        float_powf_scalar_impl(1.5.into()) float_recip() float_remainder_scalar(2.0.into())
        float_repeat_dim(0, 2) float_reshape(Shape::new([64, 256])) float_round() float_sign()
        float_sin() float_sinh() float_slice(&[Slice::new(0, Some(100), 1)]) float_sort(0, false)
        float_sqrt() float_sub_scalar(2.0.into()) float_sum() float_sum_dim(0)
        float_swap_dims(0, 1) float_tan() float_tanh() float_to_device(&Default::default())
        float_trunc() float_unfold(0, 4, 2) gelu() log_sigmoid() relu() sigmoid()
        float_gather_nd(indices(&[100, 1]))
    }
    binary! {
        float_add() float_atan2() float_div() float_matmul() float_mul() float_powf()
        float_remainder() float_sub()
    }
    other! {
        adaptive_avg_pool1d: |of| A::adaptive_avg_pool1d(of(&[8, 16, 128]), 64);
        adaptive_avg_pool2d: |of| A::adaptive_avg_pool2d(of(IMAGE), [16, 16]);
        avg_pool1d: |of| A::avg_pool1d(of(&[8, 16, 128]), 2, 2, 0, true, false);
        avg_pool2d: |of| A::avg_pool2d(of(IMAGE), [2, 2], [2, 2], [0, 0], true, false);
        conv1d: |of| {
            let options = ConvOptions::new([1], [0], [1], 1);
            A::conv1d(of(&[8, 16, 128]), of(&[64, 16, 16]), Some(of(&[64])), options)
        };
        conv2d: |of| {
            let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
            A::conv2d(of(IMAGE), of(&[64, 8, 6, 6]), Some(of(&[64])), options)
        };
        conv3d: |of| {
            let options = ConvOptions::new([1; 3], [0; 3], [1; 3], 1);
            A::conv3d(of(&[2, 8, 8, 8, 16]), of(&[32, 8, 4, 4, 4]), Some(of(&[32])), options)
        };
        conv_transpose1d: |of| {
            let options = ConvTransposeOptions::new([1], [0], [0], [1], 1);
            A::conv_transpose1d(of(&[8, 16, 128]), of(&[16, 64, 16]), Some(of(&[64])), options)
        };
        conv_transpose2d: |of| {
            let options = ConvTransposeOptions::new([1; 2], [0; 2], [0; 2], [1; 2], 1);
            A::conv_transpose2d(of(IMAGE), of(&[8, 64, 6, 6]), Some(of(&[64])), options)
        };
        conv_transpose3d: |of| {
            let options = ConvTransposeOptions::new([1; 3], [0; 3], [0; 3], [1; 3], 1);
            let (x, weight) = (of(&[2, 8, 8, 8, 16]), of(&[8, 32, 4, 4, 4]));
            A::conv_transpose3d(x, weight, Some(of(&[32])), options)
        };
        deform_conv2d: |of| {
            let options = DeformConvOptions::new([1; 2], [0; 2], [1; 2], 1, 1);
            let (offset, mask) = (of(&[2, 18, 30, 30]), of(&[2, 9, 30, 30]));
            let (x, weight) = (of(IMAGE), of(&[64, 8, 3, 3]));
            A::deform_conv2d(x, offset, weight, Some(mask), Some(of(&[64])), options)
        };
        embedding: |of| A::embedding(of(SQUARE), indices(&[2, 64]));
        float_cat: |of| A::float_cat(vec![of(SQUARE), of(SQUARE)], 0);
        float_cross: |of| A::float_cross(of(&[8192, 3]), of(&[8192, 3]), 1);
        float_expand: |of| A::float_expand(of(&[1, 128, 128]), Shape::new([4, 128, 128]));
        float_gather: |of| A::float_gather(0, of(SQUARE), indices(SQUARE));
        float_mask_where: |of| A::float_mask_where(of(SQUARE), mask(SQUARE), of(SQUARE));
        float_max_dim_with_indices: |of| {
            A::float_max_dim_with_indices(of(&[2, 8192]), 0, IntDType::I32).0
        };
        float_min_dim_with_indices: |of| {
            A::float_min_dim_with_indices(of(&[2, 8192]), 0, IntDType::I32).0
        };
        float_max_dim: |of| A::float_max_dim(of(&[2, 8192]), 0);
        float_min_dim: |of| A::float_min_dim(of(&[2, 8192]), 0);
        float_scatter_add: |of| {
            A::float_scatter_add(0, of(SQUARE), indices(SQUARE), of(SQUARE))
        };
        float_scatter_nd: |of| {
            let to = indices(&[100, 1]);
            A::float_scatter_nd(of(SQUARE), to, of(&[100, 128]), IndexingUpdateOp::Mul)
        };
        float_select: |of| A::float_select(of(SQUARE), 0, indices(&[100]));
        float_select_add: |of| {
            A::float_select_add(of(SQUARE), 0, indices(&[100]), of(&[100, 128]))
        };
        float_slice_assign: |of| {
            let slices = [Slice::new(0, Some(100), 1), Slice::new(0, Some(128), 1)];
            A::float_slice_assign(of(SQUARE), &slices, of(&[100, 128]))
        };
        float_sort_with_indices: |of| {
            A::float_sort_with_indices(of(SQUARE), 0, false, IntDType::I32).0
        };
        interpolate: |of| {
            let options = InterpolateOptions::new(InterpolateMode::Bilinear);
            A::interpolate(of(IMAGE), [48, 48], options)
        };
        // The bias is not kept.
        linear: |of| A::linear(of(SQUARE), of(SQUARE), None);
        max_pool1d: |of| A::max_pool1d(of(&[8, 16, 128]), 2, 2, 0, 1, false);
        max_pool1d_with_indices: |of| {
            A::max_pool1d_with_indices(of(&[8, 16, 128]), 2, 2, 0, 1, false).output
        };
        max_pool2d: |of| A::max_pool2d(of(IMAGE), [2; 2], [2; 2], [0; 2], [1; 2], false);
        max_pool2d_with_indices: |of| {
            A::max_pool2d_with_indices(of(IMAGE), [2; 2], [2; 2], [0; 2], [1; 2], false).output
        };
    }
    cases
}

/// Bytes that an operation keeps, and whether its result is a view.
#[derive(Debug)]
struct Measured {
    kept: usize,
    is_view: bool,
}

fn bytes(tensor: &T) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}

fn leaf(shape: &[usize]) -> T {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|index| 1.0 + (index % 97) as f32 / 100.0)
        .collect();
    let data = TensorData::new(values, shape.to_vec());
    A::float_set_require_grad(A::float_from_data(data, &Default::default()), true)
}

/// Returns what is measured beside what the table says.
fn measure(case: &Case) -> (Measured, Measured) {
    let mut operands = 0;
    let floor = ALLOCATIONS.current_usage();
    let result = (case.run)(&mut |shape| {
        let operand = leaf(shape);
        operands += bytes(&operand);
        operand
    });
    let result_bytes = bytes(&result);
    drop(result.primitive);
    let kept = ALLOCATIONS.current_usage() - floor;
    drop((result.node, result.rc));

    // Untracked, so that nothing is kept; and held here, so that nothing is in place.
    let mut held = Vec::new();
    let mut before = 0;
    let result = (case.run)(&mut |shape| {
        let operand = A::float_detach(leaf(shape));
        held.push(operand.clone());
        before = ALLOCATIONS.current_usage();
        operand
    });
    let after = ALLOCATIONS.current_usage();
    let is_large = result_bytes > 2 * SLACK;
    let is_view = is_large && after < before + result_bytes / 2;
    drop((result, held));

    let table = Saves::known(case.name).expect("it is in the table");
    let mut said = table.indices(result_bytes as u64) as usize;
    if table.saves_operands() {
        said += operands;
    }
    let measured = Measured { kept, is_view };
    let said = Measured {
        kept: said,
        is_view: table == Saves::View,
    };
    (measured, said)
}

#[test]
fn the_table_says_what_is_kept() {
    assert_eq!(Saves::of("somebody's own"), Saves::Operands);
    alone(|| {
        let mut wrong = Vec::new();
        for case in cases() {
            // Thread pools and caches come into being at some time; what is kept is kept every
            // time.
            let runs: Vec<_> = (0..4).map(|_| measure(&case)).collect();
            let least = runs.into_iter().min_by_key(|(measured, _)| measured.kept);
            let (measured, said) = least.expect("there are runs");
            let is_kept = measured.kept.abs_diff(said.kept) <= SLACK;
            if !is_kept || measured.is_view != said.is_view {
                wrong.push(format!("{}: {measured:?}, said {said:?}", case.name));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}
