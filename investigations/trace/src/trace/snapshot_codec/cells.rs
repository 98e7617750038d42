//! Arrays, whose cells go by the labels of one enum or two.

use gpucause_abi::Nanos;
use gpucause_abi::snapshot::TimeAccount;

use super::Result;
use super::axis::Labelled;
use super::value::Codec;
use super::wire::{Reader, Writer};
use std::marker::PhantomData;

/// An array by an enum.
pub(super) struct Cells<A>(PhantomData<A>);

/// An array by an enum, which may be unknown: one tag says whether it is known, and the next tag has the array.
pub(super) struct KnownCells<A>(PhantomData<A>);

/// An array of arrays, one after the other, by two enums.
pub(super) struct Table<A, B>(PhantomData<(A, B)>);

/// Without the zeros at the end.
fn write_used(numbers: &[u64], tag: u32, to: &mut Writer) {
    let used = numbers.iter().rposition(|&number| number != 0).map_or(0, |last| last + 1);
    to.numbers(tag, &numbers[..used]);
}

/// Positions that are the same thing here add up; unknown ones are skipped.
fn add<A: Labelled, const N: usize>(
    cells: &mut [u64; N],
    numbers: &[u64],
    from: Reader<'_>,
) -> Result<()> {
    for (position, &number) in (0..).zip(numbers) {
        let own = A::axis(from.axes).at(position)?;
        if let Some(cell) = own.and_then(|own| cells.get_mut(own.position())) {
            *cell = cell.saturating_add(number);
        }
    }
    Ok(())
}

impl<A: Labelled, const N: usize> Codec<[u64; N]> for Cells<A> {
    fn write(cells: &[u64; N], tag: u32, to: &mut Writer) {
        write_used(cells, tag, to);
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<[u64; N]>> {
        let mut cells = [0; N];
        add::<A, N>(&mut cells, &from.numbers(tag)?, from)?;
        Ok(Some(cells))
    }
}

impl<A: Labelled, const N: usize> Codec<[Nanos; N]> for Cells<A> {
    fn write(cells: &[Nanos; N], tag: u32, to: &mut Writer) {
        write_used(&cells.map(|time| time.0), tag, to);
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<[Nanos; N]>> {
        let cells: Option<[u64; N]> = Self::read(from, tag)?;
        Ok(cells.map(|cells| cells.map(Nanos)))
    }
}

impl<A: Labelled, const N: usize> Codec<Option<[u64; N]>> for KnownCells<A> {
    fn write(cells: &Option<[u64; N]>, tag: u32, to: &mut Writer) {
        if let Some(cells) = cells {
            to.number(tag, 1);
            write_used(cells, tag + 1, to);
        }
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<Option<[u64; N]>>> {
        let cells = Cells::<A>::read(from, tag + 1)?;
        let is_known = from.number(tag)? != 0;
        Ok(Some(cells.filter(|_| is_known)))
    }
}

impl<A: Labelled, B: Labelled, const N: usize, const M: usize> Codec<[[u64; M]; N]>
    for Table<A, B>
{
    fn write(table: &[[u64; M]; N], tag: u32, to: &mut Writer) {
        write_used(table.as_flattened(), tag, to);
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<[[u64; M]; N]>> {
        let mut table = [[0; M]; N];
        let columns = B::axis(from.axes).len().max(1);
        for (position, numbers) in (0..).zip(from.numbers(tag)?.chunks(columns)) {
            let own = A::axis(from.axes).at(position)?;
            if let Some(row) = own.and_then(|own| table.get_mut(own.position())) {
                add::<B, M>(row, numbers, from)?;
            }
        }
        Ok(Some(table))
    }
}

impl<A: Labelled, B: Labelled> Codec<TimeAccount> for Table<A, B> {
    fn write(TimeAccount(times): &TimeAccount, tag: u32, to: &mut Writer) {
        Self::write(&times.map(|row| row.map(|time| time.0)), tag, to);
    }

    fn read(from: Reader<'_>, tag: u32) -> Result<Option<TimeAccount>> {
        let table = <Self as Codec<[[u64; _]; _]>>::read(from, tag)?;
        Ok(table.map(|table| TimeAccount(table.map(|row| row.map(Nanos)))))
    }
}
