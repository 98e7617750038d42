//! What a look will take in memory, counted on the wire before anything of it is made. On the wire a process or a call may take
//! two bytes, and hundreds once it is read: a file that somebody made up could fill all memory by a few megabytes.

use gpucause_abi::hist::Histogram;
use gpucause_abi::snapshot::{
    BlockIo, CallSnapshot, DispatcherSnapshot, HostUse, MapUsage, ProcessSnapshot, StallSnapshot,
    Wait,
};

use super::LookError;
use super::message;

/// What all parts of a look may take together, in bytes: several times what thousands of processes do, of which each makes
/// dozens of kinds of calls.
pub(super) const MOST: usize = 512 << 20;

/// What a field holds.
enum Field {
    /// A message.
    Message(&'static Shape),
    /// A text in a list.
    Text,
    /// Numbers, each of which takes so many bytes.
    Numbers(usize),
}

/// What a message takes in memory.
struct Shape {
    /// Without what its lists hold: as it is read, and as what is made of it.
    bytes: usize,
    /// Fields that are not as long there as on the wire, by their tags.
    fields: &'static [(u64, Field)],
}

use Field::{Message, Numbers, Text};

const fn shape<Read, Made>(fields: &'static [(u64, Field)]) -> Shape {
    Shape { bytes: size_of::<Read>() + size_of::<Made>(), fields }
}

/// Of a text in a list: as it is read, and what it stands for.
const TEXT: usize = size_of::<String>() + size_of::<Option<u64>>();
static PAIR: Shape = shape::<message::Pair, (u64, u64)>(&[]);
static COUNTER: Shape = shape::<message::Counter, (u64, u64)>(&[]);
static MAP: Shape = shape::<message::Map, MapUsage>(&[]);
static GPU: Shape = shape::<message::ThrottledGpu, (String, f64)>(&[]);
static ERROR: Shape = shape::<message::CallError, (u64, u64)>(&[]);
static BLOCK_IO: Shape = shape::<message::BlockIo, BlockIo>(&[]);
static WAIT: Shape = shape::<message::Wait, Wait>(&[]);
/// A slot and a count as they are read, and what they are packed into.
static HISTOGRAM: Shape =
    shape::<message::Histogram, Histogram>(&[(3, Numbers(4)), (4, Numbers(16))]);
static CALL: Shape =
    shape::<message::Call, CallSnapshot>(&[(3, Message(&HISTOGRAM)), (4, Message(&HISTOGRAM))]);
static STALL: Shape = shape::<message::Stall, StallSnapshot>(&[(4, Numbers(8))]);
static LAUNCH_TIMES: Shape =
    shape::<message::LaunchTimes, (u64, Histogram)>(&[(2, Message(&HISTOGRAM))]);
static COPIES: Shape = shape::<message::Copies, (u64, Histogram)>(&[(3, Message(&HISTOGRAM))]);
static OFF_CPU: Shape = shape::<message::OffCpu, (u64, Histogram)>(&[(3, Message(&HISTOGRAM))]);
static RUN_QUEUE: Shape = shape::<message::RunQueue, (u64, Histogram)>(&[(2, Message(&HISTOGRAM))]);
static DISPATCHER: Shape = shape::<message::Dispatcher, DispatcherSnapshot>(&[(3, Numbers(8))]);
static HOST_USE: Shape =
    shape::<message::HostUse, HostUse>(&[(1, Message(&BLOCK_IO)), (3, Numbers(8))]);
static LABELS: Shape = shape::<message::Labels, ()>(&[
    (1, Text),
    (2, Text),
    (3, Text),
    (4, Text),
    (5, Text),
    (6, Text),
    (7, Text),
    (8, Text),
    (9, Text),
    (10, Text),
    (11, Text),
]);
static PROCESS: Shape = shape::<message::Process, ProcessSnapshot>(&[
    (11, Message(&CALL)),
    (12, Message(&STALL)),
    (13, Message(&ERROR)),
    (14, Message(&PAIR)),
    (16, Message(&LAUNCH_TIMES)),
    (17, Numbers(8)),
    (18, Message(&COPIES)),
    (21, Message(&PAIR)),
    (24, Numbers(8)),
    (25, Message(&DISPATCHER)),
    (26, Message(&DISPATCHER)),
    (27, Message(&HISTOGRAM)),
    (29, Message(&WAIT)),
    (30, Message(&OFF_CPU)),
    (31, Message(&RUN_QUEUE)),
    (32, Numbers(8)),
    (33, Message(&HOST_USE)),
]);
static LOOK: Shape = shape::<message::Look, ()>(&[
    (1, Message(&LABELS)),
    (4, Message(&PROCESS)),
    (5, Message(&COUNTER)),
    (6, Message(&MAP)),
    (7, Message(&GPU)),
    (8, Message(&PAIR)),
]);

/// Whether a look takes no more than [`MOST`].
///
/// # Errors
/// When it takes more, or is no protobuf.
pub(super) fn check(look: &[u8]) -> Result<(), LookError> {
    let mut left = MOST;
    weigh(look, &LOOK, &mut left)
}

fn take(left: &mut usize, bytes: usize) -> Result<(), LookError> {
    *left = left.checked_sub(bytes).ok_or(LookError::TooMuch)?;
    Ok(())
}

/// As deep as shapes are within each other, whatever the message says.
fn weigh(mut message: &[u8], shape: &Shape, left: &mut usize) -> Result<(), LookError> {
    take(left, shape.bytes)?;
    while !message.is_empty() {
        let key = varint(&mut message)?;
        let field = shape.fields.iter().find(|(tag, _)| *tag == key >> 3).map(|(_, field)| field);
        match (key & 7, field) {
            (0, field) => {
                varint(&mut message)?;
                if let Some(Numbers(bytes)) = field {
                    take(left, *bytes)?;
                }
            }
            (1, _) => skip(&mut message, 8).map(drop)?,
            (5, _) => skip(&mut message, 4).map(drop)?,
            (2, field) => {
                let length = varint(&mut message)?;
                let inner = skip(&mut message, length)?;
                match field {
                    Some(Text) => take(left, TEXT + inner.len())?,
                    Some(Message(shape)) => weigh(inner, shape, left)?,
                    Some(Numbers(bytes)) => {
                        let numbers = inner.iter().filter(|&&byte| byte & 0x80 == 0).count();
                        take(left, numbers.saturating_mul(*bytes))?;
                    }
                    None => take(left, inner.len())?,
                }
            }
            _ => return Err(CUT),
        }
    }
    Ok(())
}

const CUT: LookError = LookError::Accounts("it is no message that gpucause writes");

fn skip<'a>(message: &mut &'a [u8], length: u64) -> Result<&'a [u8], LookError> {
    let length = usize::try_from(length).map_err(|_| CUT)?;
    let (inner, rest) = message.split_at_checked(length).ok_or(CUT)?;
    *message = rest;
    Ok(inner)
}

fn varint(message: &mut &[u8]) -> Result<u64, LookError> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = message.split_first().ok_or(CUT)?;
        *message = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(CUT)
}
