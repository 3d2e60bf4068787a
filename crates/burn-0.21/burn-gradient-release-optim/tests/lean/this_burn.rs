//! What burn-lean for Burn 0.22 does not have: optimizers, and formats of files.

use burn::grad_clipping::GradientClippingConfig as Clipping;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdaGradConfig, AdamWConfig, AdanConfig, RmsPropConfig, SgdConfig};
use burn::record::{HalfPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn::tensor::DType;
use burn_gradient_release_optim::{
    AdafactorConfig, Bf16Weights, EightBitMoments, InOnePass, Lean, MasterWeights,
    StableAdamWConfig, Stochastic,
};

use crate::flex::noise::Noise;
use crate::flex::reference::assert_reference;
use crate::flex::run::Run;
use crate::flex::settings::refused;
use crate::flex::side::{Optimizer, addresses, device, model_without_embeddings};

const SHAPE: [usize; 2] = [100, 300];

#[test]
fn settings_out_of_range_are_named() {
    let adagrad = AdaGradConfig::new;
    let rmsprop = RmsPropConfig::new;
    let adafactor = AdafactorConfig::new;
    let decay = || Some(WeightDecayConfig::new(-0.5));
    let clipping = Some(Clipping::Norm(-1.0));
    assert_refused! {
        "AdaGrad: epsilon is -": adagrad().with_epsilon(-1e-5).in_one_pass();
        "AdaGrad: lr_decay is -1": adagrad().with_lr_decay(-1.0).in_one_pass();
        "AdaGrad: weight_decay is -0.5": adagrad().with_weight_decay(decay()).in_one_pass();
        "RMSProp: alpha is 1": rmsprop().with_alpha(1.0).in_one_pass();
        "RMSProp: momentum is 1.5": rmsprop().with_momentum(1.5).in_one_pass();
        "RMSProp: epsilon is -": rmsprop().with_epsilon(-1e-5).in_one_pass();
        "RMSProp: weight_decay is -0.5": rmsprop().with_weight_decay(decay()).in_one_pass();
        "Adan: beta_3 is 1": AdanConfig::new().with_beta_3(1.0).in_one_pass();
        "the threshold is -1": adafactor().with_grad_clipping(clipping).build();
        // Moments in bf16 would stand still.
        "AdaGrad: the share of the sum of squares": adagrad().in_one_pass().with_bf16_moments();
        // A difference of two of them would be negative, and its root NaN.
        "RMSProp: centered is true": rmsprop().with_centered(true).in_one_pass().with_bf16_moments();
    }
}

#[test]
#[should_panic(expected = "the state has the lower bits of master weights")]
fn stochastic_rounding_refuses_the_bits_of_master_weights() {
    let mut noise = Noise(6);
    let mut grad = || noise.numbers(SHAPE).cast(DType::BF16);
    let sgd = || SgdConfig::new().in_one_pass();
    let mut run = Run::new(Bf16Weights::new(sgd(), MasterWeights), grad());
    run.step(0.01, grad());
    let mut stochastic = run.resumed(Bf16Weights::new(sgd(), Stochastic { seed: 7 }));
    stochastic.step(0.01, grad());
}

#[test]
fn adafactor_is_that_of_another_package() {
    let adafactor = AdafactorConfig::new;
    assert_reference("adafactor", adafactor().with_weight_decay(0.1).build());
    let momentum = adafactor()
        .with_scale_parameter(false)
        .with_beta_1(Some(0.9));
    assert_reference("adafactor_momentum", momentum.build());
}

/// Burn's state of RMSProp holds its squares twice.
#[test]
fn squares_of_rmsprop_stay_where_they_are() {
    let mut noise = Noise(4);
    let mut run = Run::new(RmsPropConfig::new().in_one_pass(), noise.numbers(SHAPE));
    let mut places = Vec::new();
    for _ in 0..3 {
        run.step(0.01, noise.numbers(SHAPE));
        places.push(addresses(
            &run.state.as_ref().unwrap().square_avg.square_avg,
        ));
    }
    let stay = places.windows(2).all(|pair| pair[0] == pair[1]);
    assert!(stay, "{places:?}");
}

/// In a file whose floats have 16 bits, moments in 8 bits lose nothing.
#[test]
fn moments_in_8_bits_survive_a_file_of_half_precision() {
    fn check<O: Optimizer>(name: &str, optimizer: O) {
        let mut noise = Noise(21);
        let mut run = Run::new(optimizer, noise.numbers(SHAPE));
        run.step(0.01, noise.numbers(SHAPE));
        let recorder = NamedMpkBytesRecorder::<HalfPrecisionSettings>::default();
        let bytes = recorder.record(run.state.clone().unwrap(), ()).unwrap();
        let loaded: O::State<2> = recorder.load(bytes, &device()).unwrap();
        let saved = run.saved();
        run.state = Some(loaded);
        assert!(run.saved() == saved, "{name}");
    }
    let model = model_without_embeddings();
    let adamw = AdamWConfig::new().in_one_pass();
    let stable = StableAdamWConfig::new().build();
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    check("adamw", adamw.with_8_bit_moments(&model));
    check("stable adamw", stable.with_8_bit_moments(&model));
    check("sgd", sgd.in_one_pass().with_8_bit_moments(&model));
}
