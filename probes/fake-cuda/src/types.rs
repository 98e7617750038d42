//! C types of the CUDA interfaces, with the layout and calling convention of the real ones.

use std::ffi::{CStr, c_char, c_int, c_void};

/// A pointer that is passed on, never followed.
pub type Ptr = *const c_void;

/// Integer registers and stack slots of a call, in which structures by value are as the ABI puts them. What a function does not
/// take is ignored by it.
pub type Slots = [usize; 14];

type Word = usize;
#[rustfmt::skip]
type AnyFunction = extern "C-unwind" fn(
    Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word,
) -> c_int;

/// The slots that begin with these values.
pub fn slots(given: &[usize]) -> Slots {
    let mut slots = [0; 14];
    slots.iter_mut().zip(given).for_each(|(slot, value)| *slot = *value);
    slots
}

/// Calls a CUDA function by its address.
#[inline(always)]
pub fn call_at(address: usize, s: &Slots) -> c_int {
    // SAFETY: the address is that of a CUDA function, which takes integers and pointers only and returns an int.
    let function: AnyFunction = unsafe { std::mem::transmute(address as Ptr) };
    function(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11], s[12], s[13])
}

/// `dim3`: passed by value in two registers.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Dim3 {
    /// Blocks or threads along x.
    pub x: u32,
    /// Along y.
    pub y: u32,
    /// Along z.
    pub z: u32,
}

/// `cudaExtent`: passed by value on the stack.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Bytes along x.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Slices.
    pub depth: usize,
}

impl Extent {
    /// Bytes in the box.
    pub const fn bytes(&self) -> usize {
        self.width.wrapping_mul(self.height).wrapping_mul(self.depth)
    }
}

/// `cudaPitchedPtr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PitchedPtr {
    /// First byte.
    pub ptr: usize,
    /// Bytes a row takes.
    pub pitch: usize,
    /// Bytes a row holds.
    pub xsize: usize,
    /// Rows.
    pub ysize: usize,
}

/// A pointer that the caller passes for a result.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Stores the result, if the caller wants one.
    pub fn give(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the C interface asks for null or a pointer to a writable object of this type.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Returns true if the caller wants no result.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl<T> From<&mut T> for Out<T> {
    fn from(value: &mut T) -> Self {
        Self(value)
    }
}

/// A pointer to an argument block that the caller filled.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The block, unless the caller passed null.
    pub fn read(self) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the C interface asks for null or a pointer to a filled object of this type.
        Some(unsafe { self.0.read_unaligned() })
    }
}

/// A C string that the caller passes.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// The text, unless it is null or not UTF-8.
    pub fn read(&self) -> Option<&str> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the C interface asks for null or a terminated string that stays during the call.
        unsafe { CStr::from_ptr(self.0) }.to_str().ok()
    }
}
