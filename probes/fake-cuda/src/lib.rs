//! The stand-in CUDA libraries share this: a script says what each function does when it is called.
//!
//! A library lists its functions with [`exports!`] and gets its control functions from [`control!`]. The script comes from
//! the environment variable `GPUCAUSE_FAKE` when the library is loaded (grammar: [`script`]) and can be changed by
//! the program through three exported C functions:
//!
//! * `int gpucause_fake_set(const char *op, const char *spec)`: for all threads; an empty spec clears it. The names of
//!   settings (`nest`, `dir`) work as ops. Returns 0, or -1 after a message on standard error.
//! * `int gpucause_fake_set_thread(const char *op, const char *spec)`: the same for the calling thread only.
//! * `int gpucause_fake_on_call(const char *op, void (*callback)(void *), void *data)`: runs inside each call.
#![allow(unsafe_code, reason = "the libraries speak C")]

pub mod block;
pub mod clock;
mod contention;
pub mod function;
pub mod futex;
mod layout;
mod library;
pub mod memory;
pub mod scratch;
pub mod script;
pub mod types;
mod waker;

pub use gpucause_abi::op::Api;
pub use layout::{LIBRARIES, lay_out};
pub use library::Library;
