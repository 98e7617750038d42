//! The metrics of gpucause, and their pages.
//!
//! The [`metric`] table says what each metric means. A collector fills [`family`] values, and an [`exposition`] encoder writes them.

pub mod error_name;
pub mod exposition;
pub mod family;
pub mod foreign;
pub mod metric;
