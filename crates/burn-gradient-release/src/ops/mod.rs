//! The operations of the backend: one file per trait of Burn.
//!
//! Every method is forwarded, those with a default included: the default would lose what the inner
//! backend does instead.

mod activation;
mod bool_tensor;
mod float_tensor;
mod int_tensor;
mod module;
mod quantized_tensor;
mod transaction;
