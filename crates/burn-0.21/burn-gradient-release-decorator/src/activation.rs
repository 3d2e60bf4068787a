/// The methods of `ActivationOps`: the operations that are activation functions.
#[macro_export]
macro_rules! activation_ops {
    ($forward:ident) => {
        $forward! {
            leaky_relu(tensor: FloatTensor, negative_slope: Scalar) -> FloatTensor;
            relu(tensor: FloatTensor) -> FloatTensor;
            relu_backward(output: FloatTensor, grad: FloatTensor) -> FloatTensor;
            gelu(tensor: FloatTensor) -> FloatTensor;
            prelu(tensor: FloatTensor, alpha: FloatTensor) -> FloatTensor;
            gelu_backward(x: FloatTensor, grad: FloatTensor) -> FloatTensor;
            sigmoid(tensor: FloatTensor) -> FloatTensor;
            sigmoid_backward(output: FloatTensor, grad: FloatTensor) -> FloatTensor;
            hard_sigmoid(tensor: FloatTensor, alpha: Scalar, beta: Scalar) -> FloatTensor;
            log_sigmoid(tensor: FloatTensor) -> FloatTensor;
            softmax(tensor: FloatTensor, dim: usize) -> FloatTensor;
            log_softmax(tensor: FloatTensor, dim: usize) -> FloatTensor;
            softmin(tensor: FloatTensor, dim: usize) -> FloatTensor;
            log_sigmoid_backward(x: FloatTensor, grad: FloatTensor) -> FloatTensor;
        }
    };
}
