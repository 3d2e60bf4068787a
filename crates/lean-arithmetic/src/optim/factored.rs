//! A second moment as a column and a row: Shazeer and Stern, "Adafactor: Adaptive Learning Rates
//! with Sublinear Memory Cost" (2018), <https://arxiv.org/abs/1804.04235>.

use super::Number;

/// All elements of a tensor at once, with operations over several of them. Operations of two
/// tensors broadcast.
pub trait WholeTensor: Number {
    /// The number of dimensions.
    const RANK: usize;

    /// The lengths of the dimensions.
    fn dims(&self) -> Vec<usize>;

    /// The means over a dimension, which is kept: `[.., 1, ..]`.
    fn mean_dim(self, dim: usize) -> Self;

    /// The mean of all elements, `[1, .., 1]`.
    fn mean(self) -> Self;

    /// One divided by each element.
    fn recip(self) -> Self;
}

/// Makes a type of whole tensors, with [`Number`] and [`WholeTensor`], for a version of Burn: its
/// name and generics, the tensor, and the version's name of `greater_equal_scalar`.
#[macro_export]
macro_rules! whole_tensor {
    (
        $(#[$doc:meta])*
        $name:ident<$($argument:ident),+>([$($generic:tt)+] $tensor:ty), $greater_equal:ident
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $name<$($generic)+>(pub(crate) $tensor);

        impl<$($generic)+> ::std::ops::Add for $name<$($argument),+> {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Self(self.0.add(other.0))
            }
        }

        impl<$($generic)+> ::std::ops::Sub for $name<$($argument),+> {
            type Output = Self;

            fn sub(self, other: Self) -> Self {
                Self(self.0.sub(other.0))
            }
        }

        impl<$($generic)+> ::std::ops::Mul for $name<$($argument),+> {
            type Output = Self;

            fn mul(self, other: Self) -> Self {
                Self(self.0.mul(other.0))
            }
        }

        impl<$($generic)+> ::std::ops::Div for $name<$($argument),+> {
            type Output = Self;

            fn div(self, other: Self) -> Self {
                Self(self.0.div(other.0))
            }
        }

        impl<$($generic)+> $crate::optim::Number for $name<$($argument),+> {
            fn add_scalar(self, scalar: f64) -> Self {
                Self(self.0.add_scalar(scalar))
            }

            fn mul_scalar(self, scalar: f64) -> Self {
                Self(self.0.mul_scalar(scalar))
            }

            fn div_scalar(self, scalar: f64) -> Self {
                Self(self.0.div_scalar(scalar))
            }

            fn sqrt(self) -> Self {
                Self(self.0.sqrt())
            }

            fn square(self) -> Self {
                Self(self.0.square())
            }

            fn sign(self) -> Self {
                Self(self.0.sign())
            }

            fn max_pair(self, other: Self) -> Self {
                Self(self.0.max_pair(other.0))
            }

            fn clamp_min(self, min: f64) -> Self {
                Self(self.0.clamp_min(min))
            }

            fn clip_by_value(self, threshold: f64) -> Self {
                let clipping = burn::grad_clipping::GradientClipping::Value(threshold as f32);
                Self(clipping.clip_gradient(self.0))
            }

            fn zeros_like(&self) -> Self {
                Self(self.0.zeros_like())
            }

            fn zero_where_signs_differ(self, one: Self, other: Self) -> Self {
                let differ = one.0.$greater_equal(0.0).not_equal(other.0.$greater_equal(0.0));
                Self(self.0.mask_fill(differ, 0.0))
            }
        }

        impl<$($generic)+> $crate::optim::WholeTensor for $name<$($argument),+> {
            const RANK: usize = D;

            fn dims(&self) -> Vec<usize> {
                self.0.dims().to_vec()
            }

            fn mean_dim(self, dim: usize) -> Self {
                Self(self.0.mean_dim(dim))
            }

            // By rows first: one sum over a large tensor loses digits where a backend adds up one
            // element after the other.
            fn mean(self) -> Self {
                Self(self.0.mean_dim(D - 1).mean().unsqueeze())
            }

            fn recip(self) -> Self {
                Self(self.0.recip())
            }
        }
    };
}

/// The moving average of a positive tensor: whole for a vector, and for each matrix of its last two
/// dimensions the means of rows and columns.
#[derive(Clone, Debug)]
pub struct Factored<T> {
    /// All of it, for vectors and scalars.
    pub whole: Option<T>,
    /// Means over the last dimension, `[.., rows, 1]`.
    pub rows: Option<T>,
    /// Means over the last but one, `[.., 1, columns]`.
    pub columns: Option<T>,
}

impl<T> Factored<T> {
    /// The same average with each part changed.
    pub fn map<U>(self, mut change: impl FnMut(T) -> U) -> Factored<U> {
        Factored {
            whole: self.whole.map(&mut change),
            rows: self.rows.map(&mut change),
            columns: self.columns.map(change),
        }
    }
}

/// Refuses a gradient or a state of another parameter, which would else be broadcast.
///
/// # Panics
///
/// If the shapes differ.
pub fn assert_shape(found: &[usize], expected: &[usize]) {
    assert!(
        found == expected,
        "a gradient or a state of the optimizer is not of its parameter's shape, with {found:?} \
         where that has {expected:?}: load the record that was saved with this model"
    );
}

impl<T: WholeTensor> Factored<T> {
    /// Refuses an average of tensors of another shape.
    fn assert_averages(&self, dims: &[usize]) {
        let mean = |axis: usize| {
            let mut dims = dims.to_vec();
            dims[axis] = 1;
            dims
        };
        let expected = match T::RANK {
            0 | 1 => [Some(dims.to_vec()), None, None],
            rank => [None, Some(mean(rank - 1)), Some(mean(rank - 2))],
        };
        let parts = [&self.whole, &self.rows, &self.columns];
        for (part, expected) in parts.into_iter().zip(expected) {
            let found = part.as_ref().map(T::dims);
            assert_shape(&found.unwrap_or_default(), &expected.unwrap_or_default());
        }
    }

    /// Adds a tensor, keeping the share `beta` of the old value, which is zero at first.
    ///
    /// # Panics
    ///
    /// If the old value is of tensors of another shape.
    pub(super) fn update(old: Option<Self>, new: T, beta: f64) -> Self {
        if let Some(old) = &old {
            old.assert_averages(&new.dims());
        }
        let average = |old: Option<T>, new: T| {
            let new = new.mul_scalar(1.0 - beta);
            Some(match old {
                Some(old) => old.mul_scalar(beta) + new,
                None => new,
            })
        };
        let (whole, rows, columns) =
            old.map_or((None, None, None), |old| (old.whole, old.rows, old.columns));
        if T::RANK < 2 {
            Self {
                whole: average(whole, new),
                rows: None,
                columns: None,
            }
        } else {
            let columns = average(columns, new.clone().mean_dim(T::RANK - 2));
            Self {
                whole: None,
                rows: average(rows, new.mean_dim(T::RANK - 1)),
                columns,
            }
        }
    }

    /// The tensor divided by the root of the average.
    pub(super) fn normalize(&self, tensor: T) -> T {
        match (&self.whole, &self.rows, &self.columns) {
            (_, Some(rows), Some(columns)) => {
                let mean = rows.clone().mean_dim(T::RANK - 2);
                let rows = (rows.clone() / mean).sqrt().recip();
                let columns = columns.clone().sqrt().recip();
                // One after the other: the product of both would be a temporary more.
                tensor * rows * columns
            }
            (Some(whole), ..) => tensor * whole.clone().sqrt().recip(),
            _ => unreachable!("`update` makes the whole, or rows and columns"),
        }
    }
}

/// The root of the mean of squares, `[1, .., 1]`.
pub(super) fn root_mean_square<T: WholeTensor>(tensor: T) -> T {
    tensor.square().mean().sqrt()
}

/// The update, scaled down to a root mean square of at most `threshold`.
pub(super) fn clip_update<T: WholeTensor>(update: T, threshold: f64) -> T {
    let excess = root_mean_square(update.clone())
        .div_scalar(threshold)
        .clamp_min(1.0);
    update / excess
}
