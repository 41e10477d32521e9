//! A collection that most sessions leave empty, in the size of a pointer.

/// A value that is mostly empty: a null pointer while it is empty, otherwise a box.
#[derive(Debug)]
pub(crate) struct Sparse<T>(Option<Box<T>>);

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Sparse<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(Box::new(value)))
    }

    /// The value, if there is one.
    pub(crate) fn from_option(value: Option<T>) -> Self {
        Self(value.map(Box::new))
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    pub(crate) fn get_or_insert_with(&mut self, make: impl FnOnce() -> T) -> &mut T {
        self.0.get_or_insert_with(|| Box::new(make()))
    }

    /// Frees the value and its box.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}
