//! Loops with the widest instructions that the processor has.

/// Functions whose first type parameter is that of the instructions, which callers leave out.
///
/// The body is a method that must be inlined, since what is not inlined has no such instructions. A
/// closure cannot be told to be.
macro_rules! vectorized {
    ($(
        $(#[$doc:meta])*
        $visibility:vis fn $name:ident<$S:ident $(, $F:ident: $bound:path)?>(
            $($arg:ident: $type:ty),* $(,)?
        ) $body:block
    )+) => {$(
        $(#[$doc])*
        $visibility fn $name $(<$F: $bound>)? ($($arg: $type),*) {
            struct Pass<T, F>(T, std::marker::PhantomData<F>);

            impl $(<$F: $bound>)? pulp::WithSimd for Pass<($($type,)*), ($($F,)?)> {
                type Output = ();

                #[inline(always)]
                fn with_simd<$S: pulp::Simd>(self, _: $S) {
                    let Self(($($arg,)*), _) = self;
                    $body
                }
            }

            let pass = Pass::<_, ($($F,)?)>(($($arg,)*), std::marker::PhantomData);
            pulp::Arch::new().dispatch(pass);
        }
    )+};
}

pub(super) use vectorized;
