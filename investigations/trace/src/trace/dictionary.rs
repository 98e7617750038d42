//! Values that repeat in many events are written once and referred to by number.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use rusqlite::{Connection, Params};

/// Numbers of the rows in a table. A lookup does not allocate.
#[derive(Debug)]
pub(super) struct Dictionary<K> {
    insert: &'static str,
    known: HashMap<K, i64>,
}

impl<K: Hash + Eq> Dictionary<K> {
    /// For an empty table. `insert` adds a row; its first parameter is the number.
    pub(super) fn new(insert: &'static str) -> Self {
        Self { insert, known: HashMap::new() }
    }

    /// Forgets the keys whose rows were added after there were so many.
    pub(super) fn shrink(&mut self, rows: i64) {
        self.known.retain(|_, id| *id <= rows);
    }

    /// Rows of the table.
    pub(super) fn rows(&self) -> i64 {
        self.known.len() as i64
    }

    /// The number of `key`. A new key gets the row that `row` returns for its number.
    pub(super) fn id<Q, P: Params>(
        &mut self,
        connection: &Connection,
        key: &Q,
        owned: impl FnOnce() -> K,
        row: impl FnOnce(i64) -> P,
    ) -> rusqlite::Result<i64>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some(&id) = self.known.get(key) {
            return Ok(id);
        }
        let id = self.rows() + 1;
        connection.execute(self.insert, row(id))?;
        self.known.insert(owned(), id);
        Ok(id)
    }
}

/// A dictionary whose keys are a name and another value.
#[derive(Debug)]
pub(super) struct Pairs<K: Hash + Eq> {
    insert: &'static str,
    known: HashMap<Box<str>, HashMap<K, i64>>,
    count: i64,
}

impl<K: Hash + Eq + Copy> Pairs<K> {
    pub(super) fn new(insert: &'static str) -> Self {
        Self { insert, known: HashMap::new(), count: 0 }
    }

    /// See [`Dictionary::shrink`].
    pub(super) fn shrink(&mut self, rows: i64) {
        self.count = rows;
        self.known.values_mut().for_each(|known| known.retain(|_, id| *id <= rows));
    }

    pub(super) const fn rows(&self) -> i64 {
        self.count
    }

    /// The number of the pair. A new pair gets the row that `row` returns for its number.
    pub(super) fn id<P: Params>(
        &mut self,
        connection: &Connection,
        (name, with): (&str, K),
        row: impl FnOnce(i64) -> P,
    ) -> rusqlite::Result<i64> {
        if let Some(&id) = self.known.get(name).and_then(|known| known.get(&with)) {
            return Ok(id);
        }
        let id = self.count + 1;
        connection.execute(self.insert, row(id))?;
        self.count = id;
        self.known.entry(name.into()).or_default().insert(with, id);
        Ok(id)
    }
}
