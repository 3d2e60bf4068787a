//! Conversions between a module of Burn's and the one of the same fields here.

/// A module with the fields of Burn's: `From` in both directions. A field in brackets is a `Vec` of
/// modules.
macro_rules! same_fields {
    ($lean:ty, $plain:ty, { $([$modules:ident],)? $($field:ident),+ $(,)? }) => {
        same_fields!(@from $plain, $lean, { $($modules,)? }, { $($field),+ });
        same_fields!(@from $lean, $plain, { $($modules,)? }, { $($field),+ });
    };
    (@from $from:ty, $to:ty, { $($modules:ident,)? }, { $($field:ident),+ }) => {
        impl From<$from> for $to {
            fn from(module: $from) -> Self {
                Self {
                    $($modules: module.$modules.into_iter().map(Into::into).collect(),)?
                    $($field: $crate::operations::nn::same_fields::Same::same(module.$field)),+
                }
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
