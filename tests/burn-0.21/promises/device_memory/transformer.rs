//! A transformer's gradients, on the fused backend only: its kernels take long to make.

use super::MATRICES;
use super::device_memory::training::saves;
use crate::harness::models::Transformer;

#[test]
fn a_transformer_peaks_where_its_forward_pass_ends() {
    saves::<Transformer>(MATRICES).assert_plain_needs_more();
}
