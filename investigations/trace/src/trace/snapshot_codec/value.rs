//! How each type of the accounts lies in a message.

use std::collections::BTreeSet;

use gpucause_abi::Syscall;
use gpucause_abi::hist::{Encoder, Histogram, SLOTS, Slots};
use gpucause_abi::measure::{MEASURES, Measures, WireTag};
use gpucause_abi::op::OpId;
use gpucause_abi::snapshot::{
    Comm, DeviceName, DispatcherSnapshot, HostUse, LaunchSampling, LaunchStep, MemorySnapshot,
    RateEstimate,
};
use gpucause_abi::state::LockKind;
use gpucause_abi::{Nanos, ProcId, Tgid, Tid};
use parking_lot::Mutex;

use super::axis::Labelled;
use super::wire::{Reader, Writer};
use super::{Result, SnapshotError};

/// Value that is a message of its own.
pub(super) trait Message: Sized {
    fn write(&self, to: &mut Writer);

    /// `None` for what this version does not know.
    fn read(from: Reader<'_>) -> Result<Option<Self>>;
}

/// A value lies under a tag, and for some types under the tags that follow.
pub(super) trait Value: Sized {
    /// Writes nothing when it has the value that is read where nothing is.
    fn write(&self, tag: u32, to: &mut Writer);

    /// `None` for what this version does not know.
    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>>;
}

/// A way to write a value.
pub(super) trait Codec<T> {
    fn write(value: &T, tag: u32, to: &mut Writer);
    fn read(from: Reader<'_>, tag: u32) -> Result<Option<T>>;
}

/// The encoding that the value's type defines.
pub(super) struct Plain;

impl<T: Value> Codec<T> for Plain {
    fn write(value: &T, tag: u32, to: &mut Writer) {
        value.write(tag, to);
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<T>> {
        T::read(from, tag)
    }
}

/// Value that is one number.
trait Number: Copy {
    fn to_u64(self) -> u64;
    fn from_u64(number: u64) -> Result<Self>;
}

macro_rules! numbers {
    ($($name:ty: $to:expr, $from:expr;)+) => {$(
        impl Number for $name {
            fn to_u64(self) -> u64 {
                ($to)(self)
            }

            fn from_u64(number: u64) -> Result<Self> {
                narrow(number).map($from)
            }
        }

        impl Value for $name {
            fn write(&self, tag: u32, to: &mut Writer) {
                if self.to_u64() != 0 {
                    to.number(tag, self.to_u64());
                }
            }

            fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
                Self::from_u64(from.number(tag)?).map(Some)
            }
        }
    )+};
}

numbers! {
    u64: |own| own, |number: u64| number;
    u32: u64::from, |number: u32| number;
    u16: u64::from, |number: u16| number;
    bool: u64::from, |number: u64| number != 0;
    Nanos: |Nanos(own)| own, Nanos;
    ProcId: |ProcId(own)| own.into(), ProcId;
    Tgid: |Tgid(own)| own.into(), Tgid;
    Tid: |Tid(own)| own.into(), Tid;
}

pub(super) fn narrow<T: TryFrom<u64>>(number: u64) -> Result<T> {
    T::try_from(number).map_err(|_| SnapshotError::Accounts("it has a number that is too large"))
}

impl<T: Number> Value for Option<T> {
    fn write(&self, tag: u32, to: &mut Writer) {
        if let Some(own) = self {
            to.number(tag, own.to_u64());
        }
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        from.known_number(tag)?.map(T::from_u64).transpose().map(Some)
    }
}

/// Rank and number of ranks, under two tags.
impl Value for Option<(u32, u32)> {
    fn write(&self, tag: u32, to: &mut Writer) {
        self.map(|(rank, _)| rank).write(tag, to);
        self.map(|(_, ranks)| ranks).write(tag + 1, to);
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        let rank = Option::<u32>::read(from, tag)?.flatten();
        Ok(Some(rank.zip(Option::<u32>::read(from, tag + 1)?.flatten())))
    }
}

/// The rate and its error, under two tags; there is none without launches.
impl Value for Option<RateEstimate> {
    fn write(&self, tag: u32, to: &mut Writer) {
        if let Some(RateEstimate { per_second, error }) = self {
            per_second.write(tag, to);
            error.write(tag + 1, to);
        }
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        let (per_second, error) = (from.double(tag)?, from.double(tag + 1)?);
        Ok(Some((per_second > 0.0).then_some(RateEstimate { per_second, error })))
    }
}

impl Value for OpId {
    fn write(&self, tag: u32, to: &mut Writer) {
        let position = to.ops.position(*self);
        position.write(tag, to);
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        from.axes.ops.at(from.number(tag)?)
    }
}

/// An op and its age, under two tags.
impl Value for Option<(OpId, Nanos)> {
    fn write(&self, tag: u32, to: &mut Writer) {
        if let Some((op, age)) = self {
            let position = to.ops.position(*op);
            Some(position).write(tag, to);
            age.write(tag + 1, to);
        }
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        let Some(op) = from.known_number(tag)? else { return Ok(Some(None)) };
        let age = Nanos(from.number(tag + 1)?);
        Ok(Some(from.axes.ops.at(op)?.map(|op| (op, age))))
    }
}

/// Older files have neither the number nor the labels.
impl Value for Option<LockKind> {
    fn write(&self, tag: u32, to: &mut Writer) {
        if let Some(own) = self {
            to.number(tag, own.position() as u64);
        }
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        let Some(position) = from.known_number(tag)? else { return Ok(Some(None)) };
        Ok(Some(LockKind::axis(from.axes).at(position)?))
    }
}

/// By name, as numbers differ between architectures. Older files have none.
impl Value for Option<Syscall> {
    fn write(&self, tag: u32, to: &mut Writer) {
        if let Some(own) = self {
            to.bytes(tag, own.name().as_bytes());
        }
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        Ok(Some(Syscall::from_name(text(from, tag)?)))
    }
}

impl<T: Labelled> Value for T {
    fn write(&self, tag: u32, to: &mut Writer) {
        (self.position() as u64).write(tag, to);
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        T::axis(from.axes).at(from.number(tag)?)
    }
}

impl Value for f64 {
    fn write(&self, tag: u32, to: &mut Writer) {
        if self.to_bits() != 0 {
            to.double(tag, *self);
        }
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        Ok(Some(from.double(tag)?))
    }
}

fn text<'a>(from: Reader<'a>, tag: u32) -> Result<&'a str> {
    let text = std::str::from_utf8(from.bytes(tag)?);
    text.map_err(|_| SnapshotError::Accounts("it has a text that is not UTF-8"))
}

impl Value for String {
    fn write(&self, tag: u32, to: &mut Writer) {
        if !self.is_empty() {
            to.bytes(tag, self.as_bytes());
        }
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        Ok(Some(text(from, tag)?.to_owned()))
    }
}

/// The name of a map.
impl Value for &'static str {
    fn write(&self, tag: u32, to: &mut Writer) {
        if !self.is_empty() {
            to.bytes(tag, self.as_bytes());
        }
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        name_of_map(text(from, tag)?).map(Some)
    }
}

/// Names of maps live as long as the program, as those in it do. There is an end to how many a file can bring.
fn name_of_map(name: &str) -> Result<&'static str> {
    const MOST: usize = 256;
    const LONGEST: usize = 64;
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock();
    if let Some(&name) = known.get(name) {
        return Ok(name);
    }
    if known.len() >= MOST || name.len() > LONGEST {
        return Err(SnapshotError::Accounts("it has names of maps that no kernel program has"));
    }
    let name: &'static str = String::leak(name.to_owned());
    known.insert(name);
    drop(known);
    Ok(name)
}

/// Without the zeros at the end.
fn write_name(name: &[u8], tag: u32, to: &mut Writer) {
    if let Some(last) = name.iter().rposition(|&byte| byte != 0) {
        to.bytes(tag, &name[..=last]);
    }
}

fn read_name<const N: usize>(from: Reader<'_>, tag: u32) -> Result<[u8; N]> {
    let used = from.bytes(tag)?;
    let mut name = [0; N];
    let own = name.get_mut(..used.len());
    own.ok_or(SnapshotError::Accounts("it has a name that is too long"))?.copy_from_slice(used);
    Ok(name)
}

macro_rules! fixed_names {
    ($($name:ident),+) => {$(
        impl Value for $name {
            fn write(&self, tag: u32, to: &mut Writer) {
                write_name(&self.0, tag, to);
            }

            fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
                read_name(from, tag).map(|name| Some(Self(name)))
            }
        }
    )+};
}

fixed_names!(Comm, DeviceName);

/// Under two tags.
impl Value for MemorySnapshot {
    fn write(&self, tag: u32, to: &mut Writer) {
        let Self { allocated, freed } = self;
        allocated.write(tag, to);
        freed.write(tag + 1, to);
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        Ok(Some(Self { allocated: from.number(tag)?, freed: from.number(tag + 1)? }))
    }
}

/// Its label and its numbers, under three tags. An unknown one is from a newer version: what is beside it about the
/// number of launches still holds.
impl Value for LaunchStep {
    fn write(&self, tag: u32, to: &mut Writer) {
        let (one_in, share) = match *self {
            Self::Full => return,
            Self::DriverOnly => (0, 0.0),
            Self::Sampled { one_in } => (one_in, 0.0),
            Self::PartTime { share, one_in } => (one_in, share),
        };
        to.bytes(tag, self.label().as_bytes());
        one_in.write(tag + 1, to);
        share.write(tag + 2, to);
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        let one_in = narrow(from.number(tag + 1)?)?;
        let share = from.double(tag + 2)?;
        Ok(Some(match text(from, tag)? {
            "driver_only" => Self::DriverOnly,
            "sampled" => Self::Sampled { one_in },
            "part_time" => Self::PartTime { share, one_in },
            _ => Self::Full,
        }))
    }
}

/// Under the tags of the rows: in this message, and in the one about the host, which has the tag given.
impl Value for Measures {
    fn write(&self, host: u32, to: &mut Writer) {
        for (measure, amount) in MEASURES.iter().zip(self.amounts()) {
            if let WireTag::Process(tag) = measure.tag {
                amount.write(tag, to);
            }
        }
        to.used_message(host, |to| {
            for (measure, amount) in MEASURES.iter().zip(self.amounts()) {
                if let WireTag::Host(tag) = measure.tag {
                    amount.write(tag, to);
                }
            }
        });
    }

    fn read(from: Reader<'_>, host: u32) -> Result<Option<Self>> {
        let mut measures = Self::default();
        for (measure, amount) in MEASURES.iter().zip(measures.amounts_mut()) {
            *amount = match measure.tag {
                WireTag::Process(tag) => from.number(tag)?,
                WireTag::Host(tag) => from.message(host, |from| from.number(tag))?,
            };
        }
        Ok(Some(measures))
    }
}

/// How many slots lie between each slot in use and the one before, and under the next tag the counts.
impl Value for Slots {
    fn write(&self, tag: u32, to: &mut Writer) {
        let mut next = 0;
        let (gaps, counts): (Vec<_>, Vec<_>) = self
            .iter()
            .map(|(slot, count)| {
                let gap = u64::from(slot.saturating_sub(next));
                next = slot.saturating_add(1);
                (gap, count)
            })
            .unzip();
        to.numbers(tag, &gaps);
        to.numbers(tag + 1, &counts);
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        const DISORDER: SnapshotError = SnapshotError::Accounts("it has a histogram without order");
        let (gaps, counts) = (from.numbers(tag)?, from.numbers(tag + 1)?);
        if gaps.len() != counts.len() {
            return Err(DISORDER);
        }
        let mut encoder = Encoder::with_capacity(gaps.len() * 2);
        let mut next = 0u16;
        for (gap, count) in gaps.into_iter().zip(counts) {
            let slot = narrow::<u16>(gap)?.checked_add(next).ok_or(DISORDER)?;
            if usize::from(slot) >= SLOTS || count == 0 {
                return Err(DISORDER);
            }
            encoder.push(slot, count);
            next = slot + 1;
        }
        Ok(Some(encoder.finish()))
    }
}

/// Messages that occur once. A missing one is read as one without fields.
macro_rules! single {
    ($($name:ty),+) => {$(
        impl Value for $name {
            fn write(&self, tag: u32, to: &mut Writer) {
                to.used_message(tag, |to| Message::write(self, to));
            }

            fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
                from.message(tag, <Self as Message>::read)
            }
        }
    )+};
}

single!(Histogram, LaunchSampling, HostUse);

impl Value for Option<Box<DispatcherSnapshot>> {
    fn write(&self, tag: u32, to: &mut Writer) {
        if let Some(own) = self {
            to.message(tag, |to| own.write(to));
        }
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        let mut own = Vec::<DispatcherSnapshot>::read(from, tag)?.unwrap_or_default();
        Ok(Some(own.pop().map(Box::new)))
    }
}

/// Messages that this version does not know are skipped.
impl<T: Message> Value for Vec<T> {
    fn write(&self, tag: u32, to: &mut Writer) {
        for own in self {
            to.message(tag, |to| own.write(to));
        }
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Self>> {
        from.messages(tag, T::read).map(Some)
    }
}

macro_rules! tuples {
    ($(($($name:ident $tag:literal),+))+) => {$(
        #[expect(non_snake_case, reason = "named as their types")]
        impl<$($name: Value),+> Message for ($($name,)+) {
            fn write(&self, to: &mut Writer) {
                let ($($name,)+) = self;
                $($name.write($tag, to);)+
            }

            fn read(from: Reader<'_>) -> Result<Option<Self>> {
                $(let $name = $name::read(from, $tag)?;)+
                Ok((|| Some(($($name?,)+)))())
            }
        }
    )+};
}

tuples! { (A 1, B 2) (A 1, B 2, C 3) }
