//! Records that Rust and C share.

/// Declares records for both languages: a `repr(C)` struct here, and its C text with size and offsets for the header.
macro_rules! records {
    ($($(#[$meta:meta])* $name:ident as $c_name:literal { $($(#[$fmeta:meta])* $field:ident: $ty:tt),+ $(,)? })+) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
            #[allow(missing_docs, reason = "most field names say all, unit included")]
            #[repr(C)]
            pub struct $name { $($(#[$fmeta])* pub $field: $ty),+ }
        )+

        pub(crate) fn c_records() -> Vec<CRecord> {
            vec![$(CRecord {
                name: $c_name,
                size: size_of::<$name>(),
                fields: vec![$((stringify!($field), stringify!($ty), std::mem::offset_of!($name, $field))),+],
            }),+]
        }
    };
}
pub(crate) use records;

/// A record as the header renders it: `(field, Rust type, offset)`.
pub(crate) struct CRecord {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: Vec<(&'static str, &'static str, usize)>,
}
