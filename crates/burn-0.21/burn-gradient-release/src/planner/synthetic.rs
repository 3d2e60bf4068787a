//! Traces of made-up models, by the names of Burn's operations.

use crate::planner::operations::Trace;

/// Size of a result, in bytes.
pub(super) type Bytes = u64;

/// A trace in the making.
#[derive(Default)]
pub(super) struct Model {
    pub(super) trace: Trace,
}

impl Model {
    /// Notes an operation with one result. Returns its buffer.
    pub(super) fn op(&mut self, name: &'static str, operands: &[usize], bytes: Bytes) -> usize {
        self.trace.operation(name, operands.to_vec(), None);
        self.trace.result(bytes)
    }

    /// Input to the first operation: made by a parameter and data.
    pub(super) fn stem(&mut self, bytes: Bytes) -> usize {
        self.op("conv2d", &[], bytes)
    }

    /// Normalizes over groups, as burn-nn does by hand.
    pub(super) fn norm(&mut self, x: usize, bytes: Bytes) -> usize {
        let mean = self.op("float_mean_dim", &[x], bytes / 64);
        let centred = self.op("float_sub", &[x, mean], bytes);
        let square = self.op("float_powf_scalar_impl", &[centred], bytes);
        let variance = self.op("float_mean_dim", &[square], bytes / 64);
        let variance = self.op("float_add_scalar", &[variance], bytes / 64);
        let deviation = self.op("float_sqrt", &[variance], bytes / 64);
        let normal = self.op("float_div", &[centred, deviation], bytes);
        let scaled = self.op("float_mul", &[normal], bytes);
        self.op("float_add", &[scaled], bytes)
    }

    /// Ten to twelve operations on `[batch, channels, height, width]`, and the sum with its input.
    pub(super) fn residual(&mut self, x: usize, bytes: Bytes) -> usize {
        let y = self.norm(x, bytes);
        let y = self.op("relu", &[y], bytes);
        let y = self.op("conv2d", &[y], bytes);
        self.op("float_add", &[x, y], bytes)
    }

    /// Attention over tokens, with a mask that all layers share.
    pub(super) fn attention(&mut self, x: usize, mask: Option<usize>, bytes: Bytes) -> usize {
        let [q, k, v] = [(); 3].map(|()| self.op("linear", &[x], bytes));
        let k = self.op("float_swap_dims", &[k], bytes);
        let scores = self.op("float_matmul", &[q, k], 2 * bytes);
        let scores = match mask {
            Some(mask) => self.op("float_add", &[scores, mask], 2 * bytes),
            None => scores,
        };
        let highest = self.op("float_max_dim", &[scores], bytes / 64);
        let scores = self.op("float_sub", &[scores, highest], 2 * bytes);
        let scores = self.op("float_exp", &[scores], 2 * bytes);
        let sum = self.op("float_sum_dim", &[scores], bytes / 64);
        let scores = self.op("float_div", &[scores, sum], 2 * bytes);
        let y = self.op("float_matmul", &[scores, v], bytes);
        let y = self.op("linear", &[y], bytes);
        self.op("float_add", &[x, y], bytes)
    }
}

/// The size of an activation.
pub(super) const UNIT: Bytes = 4096;

/// A chain of activations.
pub(super) fn chain(operations: usize) -> Trace {
    let mut model = Model::default();
    let mut x = model.stem(UNIT);
    while model.trace.len() < operations {
        x = model.op("float_tanh", &[x], UNIT);
    }
    model.trace
}

/// Blocks with a sum around each.
pub(super) fn residual(operations: usize) -> Trace {
    let mut model = Model::default();
    let mut x = model.stem(UNIT);
    while model.trace.len() < operations {
        x = model.residual(x, UNIT);
    }
    model.trace
}

/// Four levels with one skip connection each, each level of half the bytes; as many blocks as it
/// takes.
pub(super) fn u_net(operations: usize, has_attention: bool) -> Trace {
    const LEVELS: u32 = 4;

    let mut model = Model::default();
    let mut x = model.stem(UNIT);
    let mut skips = Vec::new();
    let each = operations / (2 * LEVELS as usize);
    let stage = |model: &mut Model, mut x: usize, bytes: Bytes, is_low: bool| {
        let from = model.trace.len();
        while model.trace.len() < from + each.saturating_sub(3) {
            x = model.residual(x, bytes);
            if has_attention && is_low {
                x = model.attention(x, None, bytes);
            }
        }
        x
    };
    for level in 0..LEVELS {
        let bytes = UNIT >> level;
        x = stage(&mut model, x, bytes, level + 1 >= LEVELS / 2);
        skips.push((x, bytes));
        x = model.op("conv2d", &[x], bytes / 2);
    }
    for (level, (skip, bytes)) in skips.into_iter().enumerate().rev() {
        let up = model.op("interpolate", &[x], bytes);
        let both = model.op("float_cat", &[up, skip], 2 * bytes);
        x = model.op("conv2d", &[both], bytes);
        x = stage(&mut model, x, bytes, level as u32 + 1 >= LEVELS / 2);
    }
    model.trace
}

/// Skip connections alone: the result of each operation is used again on the way back.
pub(super) fn u_net_of_operations(operations: usize) -> Trace {
    let mut model = Model::default();
    let mut x = model.stem(UNIT);
    let mut skips = Vec::new();
    while model.trace.len() < operations / 2 {
        skips.push(x);
        x = model.op("conv2d", &[x], UNIT);
    }
    for skip in skips.into_iter().rev() {
        let both = model.op("float_add", &[x, skip], UNIT);
        x = model.op("conv2d", &[both], UNIT);
    }
    model.trace
}

/// Layers of attention that share a mask, and residual blocks between.
pub(super) fn transformer(operations: usize) -> Trace {
    let mut model = Model::default();
    let mask = model.stem(2 * UNIT);
    let mut x = model.stem(UNIT);
    while model.trace.len() < operations {
        x = model.attention(x, Some(mask), UNIT);
        x = model.residual(x, UNIT);
    }
    model.trace
}

/// Operations on one or two earlier results, most of them recent.
pub(super) fn random(operations: usize, seed: u64) -> Trace {
    const NAMES: [&str; 5] = [
        "float_add",
        "float_mul",
        "float_tanh",
        "conv2d",
        "max_pool2d",
    ];

    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % below
    };
    let mut model = Model::default();
    let mut made = vec![model.stem(UNIT)];
    while model.trace.len() < operations {
        let mut operands = Vec::new();
        for _ in 0..1 + next(2) {
            let back = match next(8) {
                0 => next(made.len()),
                _ => next(made.len().min(3)),
            };
            operands.push(made[made.len() - 1 - back]);
        }
        let bytes = (1 + next(8)) as u64 * 64;
        made.push(model.op(NAMES[next(NAMES.len())], &operands, bytes));
    }
    model.trace
}
