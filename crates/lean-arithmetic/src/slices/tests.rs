//! Each function beside its definition in 64 bits.

use super::*;

/// Numbers in [-`most`, `most`).
fn numbers(count: usize, seed: usize, most: f32) -> Vec<f32> {
    let at = |at: usize| ((at * 7919 + seed * 104_729 + 13) % 2003) as f32 / 1001.5 - 1.0;
    (0..count).map(|place| at(place) * most).collect()
}

/// That numbers are the expected ones, up to so many roundings of the largest.
fn assert_near(found: &[f32], expected: &[f64], roundings: f64) {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(*found) - expected).abs();
        let limit = roundings * f64::from(f32::EPSILON) * largest;
        assert!(off <= limit, "{at}: {found} for {expected}");
    }
}

/// The value and the derivative.
fn definition(function: Activation, x: f64) -> [f64; 2] {
    match function {
        Activation::Gelu => {
            let distribution = 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
            let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            [x * distribution, distribution + x * density]
        }
        Activation::GeluApproximate => {
            let factor = (2.0 / std::f64::consts::PI).sqrt();
            let tanh = (factor * (x + 0.044_715 * x.powi(3))).tanh();
            let slope = factor * (1.0 + 3.0 * 0.044_715 * x * x);
            let derivative = 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope;
            [0.5 * x * (1.0 + tanh), derivative]
        }
        Activation::Silu => {
            let sigmoid = 1.0 / (1.0 + (-x).exp());
            [x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid))]
        }
    }
}

#[test]
fn activations_are_those_of_their_definitions() {
    for function in [
        Activation::Gelu,
        Activation::GeluApproximate,
        Activation::Silu,
    ] {
        for count in [0, 40, 1003] {
            let (x, grad) = (numbers(count, 1, 8.0), numbers(count, 2, 1.0));
            let of = |part: usize| {
                let exact = x.iter().map(|x| definition(function, f64::from(*x))[part]);
                exact.collect::<Vec<_>>()
            };
            let of_x = of(1).into_iter().zip(&grad);
            let of_x: Vec<_> = of_x.map(|(slope, grad)| slope * f64::from(*grad)).collect();

            let mut value = vec![f32::NAN; count];
            function.value(&x, &mut value);
            assert_near(&value, &of(0), 2.0);
            let mut found = grad.clone();
            function.backward(&x, &mut found);
            assert_near(&found, &of_x, 4.0);

            // The same bits, however it is called.
            let mut in_place = x.clone();
            function.in_place(&mut in_place);
            assert_eq!(in_place, value);
            let (mut both, mut y) = (x.clone(), vec![f32::NAN; count]);
            function.value_and_backward(&mut both, &mut y, &grad);
            assert_eq!((y, both), (value, found));
        }
    }
}

/// However a tensor is cut, and on however many threads.
#[test]
fn parts_have_the_bits_of_the_whole() {
    const WIDTH: usize = 37;
    let (x, weights) = (numbers(6 * WIDTH, 1, 8.0), numbers(6 * WIDTH, 2, 1.0));
    let gamma = numbers(WIDTH, 3, 2.0);
    let norm = LayerNorm { epsilon: 1e-5 };
    let of_rows = |x: &[f32], weights: &[f32]| {
        let mut y = [x.to_vec(), x.to_vec(), weights.to_vec(), x.to_vec()];
        let [softmax, normal, grad, gelu] = &mut y;
        Softmax::Plain.rows(softmax, WIDTH);
        norm.rows(x, &gamma, None, normal);
        Softmax::Plain.backward(softmax, grad, WIDTH);
        Activation::Gelu.in_place(gelu);
        y
    };
    let whole = of_rows(&x, &weights);
    for rows in [1, 2, 4] {
        let chunks = x.chunks(rows * WIDTH).zip(weights.chunks(rows * WIDTH));
        let parts: Vec<_> = chunks.map(|(x, weights)| of_rows(x, weights)).collect();
        for (at, whole) in whole.iter().enumerate() {
            let part: Vec<f32> = parts.iter().flat_map(|part| &part[at]).copied().collect();
            assert!(part == *whole, "function {at} in parts of {rows} rows");
        }
    }
    let mut halves = x.clone();
    let (one, other) = halves.split_at_mut(41);
    Activation::Gelu.in_place(one);
    Activation::Gelu.in_place(other);
    assert_eq!(halves, whole[3]);
}

#[test]
fn a_gated_unit_is_that_of_its_definition() {
    let (gate, up, grad) = (
        numbers(77, 1, 8.0),
        numbers(77, 2, 2.0),
        numbers(77, 3, 1.0),
    );
    for function in [
        Activation::Gelu,
        Activation::GeluApproximate,
        Activation::Silu,
    ] {
        let exact = |of: &dyn Fn([f64; 2], f64, f64) -> f64| {
            let of = |at: usize| {
                let of_gate = definition(function, f64::from(gate[at]));
                of(of_gate, f64::from(up[at]), f64::from(grad[at]))
            };
            (0..gate.len()).map(of).collect::<Vec<_>>()
        };
        let mut output = vec![f32::NAN; gate.len()];
        function.gated(&gate, &up, &mut output);
        assert_near(&output, &exact(&|[value, _], up, _| value * up), 4.0);
        let (mut of_up, mut of_gate) = (up.clone(), grad.clone());
        function.gated_backward(&gate, &mut of_up, &mut of_gate);
        assert_near(&of_up, &exact(&|[value, _], _, grad| value * grad), 4.0);
        let slopes = exact(&|[_, slope], up, grad| slope * up * grad);
        assert_near(&of_gate, &slopes, 4.0);
    }
}

#[test]
fn softmax_is_that_of_its_definition() {
    for width in [1, 5, 16, 197, 2500, 128_256] {
        let (x, grad) = (numbers(2 * width, 1, 9.0), numbers(2 * width, 2, 1.0));
        for softmax in [
            Softmax::Plain,
            Softmax::MayBeEmpty,
            Softmax::Quiet,
            Softmax::Log,
        ] {
            let (mut exact, mut exact_grad) = (Vec::new(), Vec::new());
            for (x, grad) in x.chunks(width).zip(grad.chunks(width)) {
                let exp: Vec<f64> = x.iter().map(|x| f64::from(*x).exp()).collect();
                let one = f64::from(u8::from(softmax == Softmax::Quiet));
                let sum = exp.iter().sum::<f64>() + one;
                let weights = exp.iter().map(|exp| exp / sum);
                let along = match softmax {
                    Softmax::Log => grad.iter().map(|grad| f64::from(*grad)).sum(),
                    _ => weights
                        .clone()
                        .zip(grad)
                        .map(|(y, grad)| y * f64::from(*grad))
                        .sum::<f64>(),
                };
                for (weight, grad) in weights.zip(grad) {
                    let grad = f64::from(*grad);
                    match softmax {
                        Softmax::Log => {
                            exact.push(weight.ln());
                            exact_grad.push(grad - weight * along);
                        }
                        _ => {
                            exact.push(weight);
                            exact_grad.push(weight * (grad - along));
                        }
                    }
                }
            }
            let mut found = x.clone();
            softmax.rows(&mut found, width);
            assert_near(&found, &exact, 4.0);
            let mut of_x = grad.clone();
            softmax.backward(&found, &mut of_x, width);
            assert_near(&of_x, &exact_grad, 32.0);
        }
    }
}

/// Each is off by a rounding of its own, and none of all of them is left.
#[test]
fn weights_of_a_long_row_add_up_to_one_and_their_gradients_to_zero() {
    let sum = |numbers: &[f32]| numbers.iter().map(|x| f64::from(*x)).sum::<f64>();
    for width in [9_001, 128_256] {
        let mut weights = numbers(width, 1, 3.0);
        Softmax::Plain.rows(&mut weights, width);
        assert!((sum(&weights) - 1.0).abs() < 2e-8, "{}", sum(&weights));
        let mut grad: Vec<_> = numbers(width, 2, 1.0).iter().map(|x| x + 1.5).collect();
        Softmax::Plain.backward(&weights, &mut grad, width);
        assert!(sum(&grad).abs() < 2e-8, "{}", sum(&grad));
    }
}

#[test]
fn a_row_without_numbers_has_no_weights_where_it_may_be_empty() {
    let mut rows = vec![f32::NEG_INFINITY; 40];
    for softmax in [Softmax::MayBeEmpty, Softmax::Quiet] {
        rows.fill(f32::NEG_INFINITY);
        softmax.rows(&mut rows, 20);
        assert_eq!(rows, [0.0; 40]);
    }
    rows.fill(f32::NEG_INFINITY);
    Softmax::Plain.rows(&mut rows, 20);
    assert!(rows.iter().all(|number| number.is_nan()));
}

#[test]
fn layer_norm_is_that_of_its_definition() {
    const EPSILON: f64 = 1e-5;
    // A mean that is large beside the deviation, and a row that is longer than a block.
    for (width, mean) in [(1, 0.0), (5, 0.0), (384, 0.0), (384, 1e4), (2500, 3.0)] {
        let x: Vec<_> = numbers(3 * width, 1, 1.0)
            .iter()
            .map(|x| x + mean)
            .collect();
        let grad = numbers(3 * width, 2, 1.0);
        let (gamma, beta) = (numbers(width, 3, 2.0), numbers(width, 4, 1.0));
        let (mut y, mut of_x) = (Vec::new(), Vec::new());
        let (mut of_gamma, mut of_beta) = (vec![0.0; width], vec![0.0; width]);
        for (x, grad) in x.chunks(width).zip(grad.chunks(width)) {
            let count = width as f64;
            let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
            let square = |x: &f32| (f64::from(*x) - mean).powi(2);
            let deviation = (x.iter().map(square).sum::<f64>() / count + EPSILON).sqrt();
            let normal: Vec<_> = x
                .iter()
                .map(|x| (f64::from(*x) - mean) / deviation)
                .collect();
            let scaled: Vec<_> = grad
                .iter()
                .zip(&gamma)
                .map(|(g, gamma)| f64::from(*g) * f64::from(*gamma))
                .collect();
            let of_mean = scaled.iter().sum::<f64>() / count;
            let along = scaled.iter().zip(&normal).map(|(g, x)| g * x).sum::<f64>() / count;
            for at in 0..width {
                y.push(normal[at] * f64::from(gamma[at]) + f64::from(beta[at]));
                of_x.push((scaled[at] - of_mean - normal[at] * along) / deviation);
                of_gamma[at] += f64::from(grad[at]) * normal[at];
                of_beta[at] += f64::from(grad[at]);
            }
        }
        let norm = LayerNorm { epsilon: EPSILON };
        let mut found = vec![f32::NAN; x.len()];
        norm.rows(&x, &gamma, Some(&beta), &mut found);
        assert_near(&found, &y, 4.0);
        let mut grads = [grad.clone(), vec![0.0; width], vec![0.0; width]];
        let [of_input, found_gamma, found_beta] = &mut grads;
        norm.backward(&x, &gamma, of_input, [found_gamma, found_beta]);
        if width > 1 {
            assert_near(&grads[0], &of_x, 16.0);
            assert_near(&grads[1], &of_gamma, 8.0);
        }
        assert_near(&grads[2], &of_beta, 4.0);
    }
}
