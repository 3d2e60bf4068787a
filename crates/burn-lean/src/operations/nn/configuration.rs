//! Configurations that hold Burn's, and make a module of here.

/// A configuration with the fields and the settings of Burn's: `new`, a method for each setting, and
/// `init`.
macro_rules! configuration {
    (
        $name:ident($plain:ty) {
            new($($field:ident: $field_type:ty),+),
            $($setting:ident: $setting_type:ty,)*
        }
        $(#[$init:meta])*
        init($($device:ident: $device_type:ty)?) -> $module:ident
    ) => {
        #[doc = concat!("Configuration of [`", stringify!($module), "`]. It has the fields of Burn's")]
        #[doc = concat!("[`", stringify!($name), "`](", stringify!($plain), ").")]
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name($plain);

        impl $name {
            /// As Burn's.
            pub fn new($($field: $field_type),+) -> Self {
                Self(<$plain>::new($($field),+))
            }

            $(
                #[doc = concat!("As [Burn's](", stringify!($plain), "::", stringify!($setting), ").")]
                #[must_use]
                pub fn $setting(self, value: $setting_type) -> Self {
                    Self(self.0.$setting(value))
                }
            )*

            /// A module with these settings.
            ///
            $(#[$init])*
            pub fn init(&self $(, $device: $device_type)?) -> $module {
                self.0.init($($device)?).into()
            }
        }

        impl burn::config::Config for $name {}

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::ops::Deref for $name {
            type Target = $plain;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl std::ops::DerefMut for $name {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.0
            }
        }
    };
}

pub(super) use configuration;
