/// Makes the output of an operation anew of its tensors, each of which a macro of the decorator
/// maps.
///
/// `map_output!(Type, output, [path::of::the::macro] with)` calls
/// `path::of::the::macro!(with FloatTensor, tensor)` for each float tensor of the output, and so
/// for tensors of the other kinds. What contains no tensor is handed to the macro as it is.
///
/// [`names!`](crate::names) imports the names it uses.
///
/// ```
/// macro_rules! twice {
///     ($by:ident, FloatTensor, $tensor:expr) => {
///         $tensor * $by
///     };
///     ($by:ident, $type:tt, $tensor:expr) => {
///         $tensor
///     };
/// }
///
/// let by = 2.0;
/// let pair = (1.0, 3);
/// let pair = burn_gradient_release_decorator::map_output!([FloatTensor, IntTensor], pair, [twice] by,);
/// assert_eq!(pair, (2.0, 3));
/// ```
#[macro_export]
macro_rules! map_output {
    (TensorPrimitive, $output:expr, [$($map:tt)*] $($with:tt)*) => {
        match $output {
            TensorPrimitive::Float(tensor) => {
                TensorPrimitive::Float($($map)*!($($with)* FloatTensor, tensor))
            }
            TensorPrimitive::QFloat(tensor) => {
                TensorPrimitive::QFloat($($map)*!($($with)* QuantizedTensor, tensor))
            }
        }
    };
    (DeformConv2dBackward, $output:expr, [$($map:tt)*] $($with:tt)*) => {{
        let grads = $output;
        DeformConv2dBackward::new(
            $($map)*!($($with)* FloatTensor, grads.x_grad),
            $($map)*!($($with)* FloatTensor, grads.offset_grad),
            $($map)*!($($with)* FloatTensor, grads.weight_grad),
            grads.mask_grad.map(|grad| $($map)*!($($with)* FloatTensor, grad)),
            grads.bias_grad.map(|grad| $($map)*!($($with)* FloatTensor, grad)),
        )
    }};
    (MaxPool1dWithIndices, $output:expr, [$($map:tt)*] $($with:tt)*) => {{
        let pooled = $output;
        MaxPool1dWithIndices::new(
            $($map)*!($($with)* FloatTensor, pooled.output),
            $($map)*!($($with)* IntTensor, pooled.indices),
        )
    }};
    (MaxPool1dBackward, $output:expr, [$($map:tt)*] $($with:tt)*) => {
        MaxPool1dBackward::new($($map)*!($($with)* FloatTensor, $output.x_grad))
    };
    (MaxPool2dWithIndices, $output:expr, [$($map:tt)*] $($with:tt)*) => {{
        let pooled = $output;
        MaxPool2dWithIndices::new(
            $($map)*!($($with)* FloatTensor, pooled.output),
            $($map)*!($($with)* IntTensor, pooled.indices),
        )
    }};
    (MaxPool2dBackward, $output:expr, [$($map:tt)*] $($with:tt)*) => {
        MaxPool2dBackward::new($($map)*!($($with)* FloatTensor, $output.x_grad))
    };
    ([$first:tt, $second:tt], $output:expr, [$($map:tt)*] $($with:tt)*) => {{
        let (first, second) = $output;
        (
            $crate::map_output!($first, first, [$($map)*] $($with)*),
            $crate::map_output!($second, second, [$($map)*] $($with)*),
        )
    }};
    ($type:tt, $output:expr, [$($map:tt)*] $($with:tt)*) => {
        $($map)*!($($with)* $type, $output)
    };
}
