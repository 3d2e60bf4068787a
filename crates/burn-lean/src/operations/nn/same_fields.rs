//! Conversions between a module of Burn's and the one of the same fields here.

/// A module with the fields of Burn's: `From` in both directions.
macro_rules! same_fields {
    ($lean:ty, $plain:ty, { $($field:ident),+ $(,)? }) => {
        impl From<$plain> for $lean {
            fn from(plain: $plain) -> Self {
                Self { $($field: $crate::operations::nn::same_fields::Same::same(plain.$field)),+ }
            }
        }

        impl From<$lean> for $plain {
            fn from(lean: $lean) -> Self {
                Self { $($field: $crate::operations::nn::same_fields::Same::same(lean.$field)),+ }
            }
        }
    };
}

pub(super) use same_fields;

/// A field of the one module as that of the other.
pub(super) trait Same<T> {
    fn same(self) -> T;
}

impl<T, U: From<T>> Same<U> for T {
    fn same(self) -> U {
        self.into()
    }
}
