//! The operations of a backend of Burn 0.21 as tables, for backend decorators to forward.
//!
//! A decorator has to forward every method of every trait of a backend, those with a default too:
//! left out, the inner backend's own version is lost without a word. Most methods differ in their
//! signature only. Each macro of this crate hands the signatures of one trait to a macro of the
//! decorator, which makes methods of them:
//!
//! ```
//! macro_rules! list {
//!     ($($name:ident($($argument:ident: $type:tt),*) -> $output:tt;)*) => {
//!         [$(stringify!($name)),*]
//!     };
//! }
//!
//! let operations = burn_gradient_release_decorator::activation_ops!(list);
//! assert!(operations.contains(&"gelu"));
//! ```
//!
//! # Types
//!
//! Each type is one token tree, so that the decorator's macro can match it:
//!
//! | in the table | in Burn |
//! |---|---|
//! | `FloatTensor`, `IntTensor`, `BoolTensor`, `QuantizedTensor` | that of `Self` |
//! | `TensorPrimitive` | `TensorPrimitive<Self>` |
//! | `MaxPool2dWithIndices` and other structs of tensors | that of `Self` |
//! | `[Option FloatTensor]`, `[Vec FloatTensor]` | an option, a list of them |
//! | `[FloatTensor, IntTensor]` | a pair |
//! | `Device` | `&Device<Self>` |
//! | `Shape` | as it is |
//! | `(&[usize])` | what is between the parentheses |
//!
//! [`names!`] imports the types, [`signature_type!`] makes the type in Burn of the one in the
//! table, [`map_output!`] takes an output apart, and [`backend_methods!`] forwards the methods of
//! `Backend`. A decorator that keeps the tensors of the backend below forwards a method of a table
//! by [`same_tensors_method!`], and what is in no table by [`same_tensors_float_rest!`] and its
//! like.
#![forbid(unsafe_code)]

mod activation;
mod backend;
mod bool_tensor;
mod float_tensor;
mod int_tensor;
mod map_output;
mod module;
mod quantized_tensor;
mod same_tensors;
mod signature_type;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
