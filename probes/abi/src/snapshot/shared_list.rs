//! Lists of which several snapshots keep a copy.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A list whose copies share memory until one of them is changed.
#[derive(Debug)]
pub struct SharedList<T>(Arc<Vec<T>>);

impl<T> SharedList<T> {
    /// Returns true if both share the same memory.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Clone for SharedList<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for SharedList<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: PartialEq> PartialEq for SharedList<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T> Deref for SharedList<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

/// Other copies keep what they have.
impl<T: Clone> DerefMut for SharedList<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        Arc::make_mut(&mut self.0)
    }
}

impl<T> From<Vec<T>> for SharedList<T> {
    fn from(list: Vec<T>) -> Self {
        Self(Arc::new(list))
    }
}

impl<T> FromIterator<T> for SharedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Vec::from_iter(items).into()
    }
}

impl<'a, T> IntoIterator for &'a SharedList<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T: Clone> IntoIterator for &'a mut SharedList<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_memory_until_one_of_them_is_changed() {
        let first: SharedList<_> = vec![1, 2].into();
        let mut second = first.clone();
        assert!(second.is_shared_with(&first));
        second.push(3);
        assert!(!second.is_shared_with(&first));
        assert_eq!((&**first, &**second), (&[1, 2][..], &[1, 2, 3][..]));
    }
}
