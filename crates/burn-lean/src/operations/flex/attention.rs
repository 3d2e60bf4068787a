//! Attention on Flex, head by head.
//!
//! The scores of a few rows are made, normalized and used while they are in the cache of one
//! processor. Threads share out the heads, and wait for each other once for many of them.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{Bool, DType, FloatDType, Tensor, bf16, f16};
use lean_arithmetic::slices::{Softmax, drop_part};

use super::super::attention::shape::Dimensions;
use super::super::attention::visible::{FEWEST_ROWS, Visible};
use super::super::chunks::chunks_of;
use super::super::product::Before;
use super::super::threads::{in_parallel, threads};
use super::product::{Matrix, multiply, unflipped};
use super::{FlexTensor, floats, of, own, read, tensor};

/// How many scores a thread makes at once, if these are at least [`FEWEST_ROWS`].
const SCORES: usize = 32 << 10;

/// Products of two numbers that are worth another thread.
const WORTH_A_THREAD: usize = 1 << 18;

/// What attention computes with.
pub(in super::super) struct Settings {
    /// The lengths of the axes.
    pub(in super::super) shape: Dimensions,
    /// The factor of the scores.
    pub(in super::super) scale: f64,
    /// How the scores become weights.
    pub(in super::super) softmax: Softmax,
    /// The keys that queries attend to.
    pub(in super::super) visible: Arc<Visible>,
    /// How much a position between query and key subtracts from the score of each head.
    pub(in super::super) slopes: Option<Vec<f32>>,
    /// Where scores are replaced, and by what.
    pub(in super::super) masks: Vec<(Tensor<4, Bool>, f64)>,
    /// The weights that are dropped, `[batch, heads, time, words]`, and the factor of the others.
    pub(in super::super) drop: Option<(Tensor<4>, f64)>,
}

/// The attended values: `[batch, time, heads, size]`, as the query, the key and the value are.
pub(in super::super) fn attention(settings: Settings, operands: [Tensor<4>; 3]) -> Tensor<4> {
    let at_once = 4 * threads(&operands[0]);
    let options = (&operands[0].device(), operands[0].dtype());
    let shape = &settings.shape;
    let dims = [shape.batch, shape.time, shape.heads, shape.value_size];
    let mut output = of(Tensor::<4>::full(dims, 0.0, options));
    let heads = Heads::new(settings, operands.map(unflipped));
    for groups in heads.groups().chunks(heads.at_once(at_once)) {
        let outputs = in_parallel(groups, |group| heads.outputs(group));
        for (group, outputs) in groups.iter().zip(outputs) {
            write(&mut output, group, &outputs);
        }
    }
    tensor(output)
}

/// The gradients of the query, the key and the value that are wanted, from that of the output. They
/// are written over the operands that nothing else holds.
pub(in super::super) fn attention_backward(
    settings: Settings,
    operands: [Tensor<4>; 3],
    grad: Tensor<4>,
    wants: [bool; 3],
) -> [Tensor<4>; 3] {
    let at_once = 4 * threads(&grad);
    let mut heads = Heads::new(settings, operands.map(own));
    let grad = unflipped(grad);
    let groups = heads.groups();
    for groups in groups.chunks(heads.at_once(at_once)) {
        let grads = in_parallel(groups, |group| heads.gradients(group, &grad, wants));
        for (group, [query, key, value]) in groups.iter().zip(grads) {
            // Nothing reads these heads again.
            write(&mut heads.query, group, &query);
            let group = &Group {
                heads: group.key_head..group.key_head + 1,
                ..*group
            };
            write(&mut heads.key, group, &key);
            write(&mut heads.value, group, &value);
        }
    }
    [heads.query, heads.key, heads.value].map(tensor)
}

/// Heads that share a key, of one element of the batch.
struct Group {
    batch: usize,
    heads: Range<usize>,
    key_head: usize,
}

struct Heads {
    query: FlexTensor,
    key: FlexTensor,
    value: FlexTensor,
    dims: Dimensions,
    scale: f32,
    softmax: Softmax,
    visible: Arc<Visible>,
    slopes: Option<Vec<f32>>,
    masks: Vec<(FlexTensor, f32)>,
    /// `[batch, heads, time, words]`, and the factor of the weights that are kept.
    drop: Option<(FlexTensor, f32)>,
}

/// The weights of some rows of a head.
struct Weights {
    /// `[rows, size]`, scaled.
    query: Vec<f32>,
    /// `[rows, keys]`
    weights: Vec<f32>,
    keys: Range<usize>,
}

impl Heads {
    fn new(settings: Settings, [query, key, value]: [FlexTensor; 3]) -> Self {
        let mask =
            |mask: Tensor<4, Bool>| mask.try_into_primitive::<Flex>().expect("it is on Flex");
        let masks = settings.masks.into_iter();
        Self {
            query,
            key,
            value,
            dims: settings.shape,
            scale: settings.scale as f32,
            softmax: settings.softmax,
            visible: settings.visible,
            slopes: settings.slopes,
            masks: masks.map(|(of, value)| (mask(of), value as f32)).collect(),
            drop: settings
                .drop
                .map(|(words, scale)| (floats(words), scale as f32)),
        }
    }

    fn groups(&self) -> Vec<Group> {
        let Dimensions {
            batch,
            heads,
            key_heads,
            ..
        } = self.dims;
        let shared = heads / key_heads;
        let of_batch = |batch| {
            (0..key_heads).map(move |key_head| Group {
                batch,
                heads: key_head * shared..(key_head + 1) * shared,
                key_head,
            })
        };
        (0..batch).flat_map(of_batch).collect()
    }

    /// How many groups are computed before their results are written: one, if all of them are too
    /// little for another thread.
    fn at_once(&self, most: usize) -> usize {
        let Dimensions {
            batch,
            time,
            heads,
            key_time,
            value_size,
            ..
        } = self.dims;
        match batch * heads * time * key_time * value_size < WORTH_A_THREAD {
            true => 1,
            false => most,
        }
    }

    /// Rows whose scores are made at once.
    fn tiles(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Dimensions { time, key_time, .. } = self.dims;
        let of_window = self.visible.rows_of_window(SCORES);
        let rows = of_window.unwrap_or_else(|| {
            let count = (time * key_time).div_ceil(SCORES).max(1);
            time.div_ceil(count).max(FEWEST_ROWS)
        });
        chunks_of(time, rows)
    }

    /// The key and the value of a group.
    fn keys_and_values(&self, group: &Group) -> [FlexTensor; 2] {
        [&self.key, &self.value]
            .map(|tensor| part(tensor, group.batch, 0..self.dims.key_time, group.key_head))
    }

    /// `key` is that of the group.
    fn weights(&self, batch: usize, head: usize, key: &FlexTensor, rows: &Range<usize>) -> Weights {
        let keys = self.visible.keys(batch..batch + 1, rows.clone());
        let query = self.scaled_query(batch, head, rows);
        let key = rows_of(key, &keys);
        let mut weights = vec![0.0; rows.len() * keys.len()];
        let query_rows = Matrix::new(&query, [rows.len(), self.dims.head_size]);
        multiply(
            &mut weights,
            keys.len(),
            Before::Anything,
            query_rows,
            Matrix::of(&key).transposed(),
        );
        self.add_alibi(&mut weights, head, rows, &keys);
        self.replace(&mut weights, [batch, head], rows, &keys, None);
        self.softmax.rows(&mut weights, keys.len());
        Weights {
            query,
            weights,
            keys,
        }
    }

    /// `[rows, size]`
    fn scaled_query(&self, batch: usize, head: usize, rows: &Range<usize>) -> Vec<f32> {
        let query = part(&self.query, batch, rows.clone(), head);
        let numbers = Matrix::of(&query).numbers();
        numbers.map(|number| number * self.scale).collect()
    }

    /// Replaces scores that are masked by this number, or by those of their masks.
    fn replace(
        &self,
        scores: &mut [f32],
        [batch, head]: [usize; 2],
        rows: &Range<usize>,
        keys: &Range<usize>,
        by: Option<f32>,
    ) {
        for (mask, value) in &self.masks {
            let layout = mask.layout();
            let at = |axis: usize, at: usize| match layout.shape()[axis] {
                1 => 0,
                _ => at as isize * layout.strides()[axis],
            };
            let mask = mask.storage::<u8>();
            let value = by.unwrap_or(*value);
            let of_head = layout.start_offset() as isize + at(0, batch) + at(1, head);
            for (row, scores) in rows.clone().zip(scores.chunks_exact_mut(keys.len())) {
                let of_row = of_head + at(2, row);
                for (key, score) in keys.clone().zip(scores) {
                    let is_masked = mask[(of_row + at(3, key)) as usize] != 0;
                    *score = if is_masked { value } else { *score };
                }
            }
        }
        for (row, scores) in rows.clone().zip(scores.chunks_exact_mut(keys.len())) {
            let by = by.unwrap_or(f32::NEG_INFINITY);
            self.visible.hide(scores, [batch, row], keys.start, by);
        }
    }

    /// Subtracts the distance of query and key, times the slope of the head.
    fn add_alibi(&self, scores: &mut [f32], head: usize, rows: &Range<usize>, keys: &Range<usize>) {
        let Some(slopes) = &self.slopes else {
            return;
        };
        let Dimensions { time, key_time, .. } = self.dims;
        for (row, scores) in rows.clone().zip(scores.chunks_exact_mut(keys.len())) {
            for (key, score) in keys.clone().zip(scores) {
                *score -= slopes[head] * (row + key_time).abs_diff(key + time) as f32;
            }
        }
    }

    /// Drops weights of some rows of a head, or their gradients, and scales the others.
    fn drop(
        &self,
        weights: &mut [f32],
        [batch, head]: [usize; 2],
        rows: &Range<usize>,
        keys: &Range<usize>,
    ) {
        let Some((words, scale)) = &self.drop else {
            return;
        };
        let width = words.layout().shape()[3];
        let first = ((batch * self.dims.heads + head) * self.dims.time + rows.start) * width;
        let words = read(words)[first..].chunks_exact(width);
        for (words, weights) in words.zip(weights.chunks_exact_mut(keys.len())) {
            drop_part(words, keys.start, weights, *scale);
        }
    }

    /// `[time, value size]` of each head of a group.
    fn outputs(&self, group: &Group) -> Vec<f32> {
        let Group { batch, .. } = *group;
        let Dimensions {
            time, value_size, ..
        } = self.dims;
        let [key, value] = self.keys_and_values(group);
        let mut outputs = vec![0.0; group.heads.len() * time * value_size];
        for (head, outputs) in group
            .heads
            .clone()
            .zip(outputs.chunks_mut((time * value_size).max(1)))
        {
            for rows in self.tiles() {
                let Weights {
                    mut weights, keys, ..
                } = self.weights(batch, head, &key, &rows);
                self.drop(&mut weights, [batch, head], &rows, &keys);
                let value = rows_of(&value, &keys);
                let outputs = &mut outputs[rows.start * value_size..rows.end * value_size];
                write_rows(
                    outputs,
                    Matrix::new(&weights, [rows.len(), keys.len()]),
                    Matrix::of(&value),
                );
            }
        }
        outputs
    }

    /// The gradients of a group: of each of its queries, of its key and of its value. Those that
    /// are not wanted are empty.
    fn gradients(&self, group: &Group, grad: &FlexTensor, wants: [bool; 3]) -> [Vec<f32>; 3] {
        let Group { batch, .. } = *group;
        let [all_keys, all_values] = self.keys_and_values(group);
        let Dimensions {
            time,
            key_time,
            head_size: size,
            value_size,
            ..
        } = self.dims;
        let lengths = [
            group.heads.len() * time * size,
            key_time * size,
            key_time * value_size,
        ];
        let zeros = |at: usize| vec![0.0; if wants[at] { lengths[at] } else { 0 }];
        let [mut of_query, mut of_key, mut of_value] = [0, 1, 2].map(zeros);
        for (at, head) in group.heads.clone().enumerate() {
            for rows in self.tiles() {
                let Weights {
                    query,
                    mut weights,
                    keys,
                } = self.weights(batch, head, &all_keys, &rows);
                let grad = part(grad, batch, rows.clone(), head);
                let grad = Matrix::of(&grad);
                let value = rows_of(&all_values, &keys);
                let dims = [rows.len(), keys.len()];
                let mut of_scores = vec![0.0; weights.len()];
                multiply(
                    &mut of_scores,
                    keys.len(),
                    Before::Anything,
                    grad,
                    Matrix::of(&value).transposed(),
                );
                self.drop(&mut of_scores, [batch, head], &rows, &keys);
                self.softmax.backward(&weights, &mut of_scores, keys.len());
                self.replace(&mut of_scores, [batch, head], &rows, &keys, Some(0.0));
                if wants[2] {
                    self.drop(&mut weights, [batch, head], &rows, &keys);
                    let weights = Matrix::new(&weights, dims).transposed();
                    let of_value = &mut of_value[keys.start * value_size..];
                    multiply(of_value, value_size, Before::Sum, weights, grad);
                }
                let of_scores = Matrix::new(&of_scores, dims);
                if wants[1] {
                    let query = Matrix::new(&query, [rows.len(), size]);
                    let of_key = &mut of_key[keys.start * size..];
                    multiply(of_key, size, Before::Sum, of_scores.transposed(), query);
                }
                if wants[0] {
                    let key = rows_of(&all_keys, &keys);
                    let first = (at * time + rows.start) * size;
                    let of_query = &mut of_query[first..first + rows.len() * size];
                    write_rows(of_query, of_scores, Matrix::of(&key));
                    of_query.iter_mut().for_each(|number| *number *= self.scale);
                }
            }
        }
        [of_query, of_key, of_value]
    }
}

/// `[1, 1, rows, size]` of a tensor `[batch, time, heads, size]`, in f32.
fn part(tensor: &FlexTensor, batch: usize, rows: Range<usize>, head: usize) -> FlexTensor {
    let part = tensor.narrow(0, batch, 1).narrow(2, head, 1);
    let part = part.narrow(1, rows.start, rows.len());
    Flex::float_cast(part.permute(&[0, 2, 1, 3]), FloatDType::F32)
}

/// Rows of a [`part`].
fn rows_of(part: &FlexTensor, rows: &Range<usize>) -> FlexTensor {
    part.narrow(2, rows.start, rows.len())
}

/// How many products for one row are added up one after the other.
const LONGEST: usize = 512;

/// Writes `lhs * rhs`. The products for a single row, which are added up one after the other, are cut into
/// parts.
fn write_rows(output: &mut [f32], lhs: Matrix<'_>, rhs: Matrix<'_>) {
    let ([rows, inner], [_, width]) = (lhs.dims(), rhs.dims());
    if rows > 1 {
        return multiply(output, width, Before::Anything, lhs, rhs);
    }
    let mut of_part = vec![0.0; width];
    for part in chunks_of(inner, LONGEST) {
        let (lhs, rhs) = (lhs.columns(part.clone()), rhs.rows(part));
        multiply(&mut of_part, width, Before::Anything, lhs, rhs);
        for (sum, part) in output.iter_mut().zip(&of_part) {
            *sum += part;
        }
    }
}

/// Writes `[time, size]` of each head of a group into `[batch, time, heads, size]`, rounded to its type. Rows
/// that are missing are zero; if all are, nothing is written.
fn write(tensor: &mut FlexTensor, group: &Group, numbers: &[f32]) {
    if numbers.is_empty() {
        return;
    }
    let [_, time, heads, size] = tensor.layout().shape().dims();
    let dims = [time, heads, size];
    match tensor.dtype() {
        DType::F16 => write_as(tensor.storage_mut(), dims, group, numbers, f16::from_f32),
        DType::BF16 => write_as(tensor.storage_mut(), dims, group, numbers, bf16::from_f32),
        _ => write_as(tensor.storage_mut(), dims, group, numbers, |number| number),
    }
}

fn write_as<E>(
    all: &mut [E],
    [time, heads, size]: [usize; 3],
    group: &Group,
    numbers: &[f32],
    rounded: impl Fn(f32) -> E,
) {
    let of_head = numbers.len() / group.heads.len();
    for (head, numbers) in group.heads.clone().zip(numbers.chunks_exact(of_head)) {
        let first = (group.batch * time * heads + head) * size;
        let mut rows = numbers.chunks_exact(size);
        for row in all[first..].chunks_mut(heads * size).take(time) {
            let row = &mut row[..size];
            let Some(numbers) = rows.next() else {
                row.fill_with(|| rounded(0.0));
                continue;
            };
            for (element, number) in row.iter_mut().zip(numbers) {
                *element = rounded(*number);
            }
        }
    }
}
