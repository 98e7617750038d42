//! Assigns slices to tracks such that the slices of each track nest.

/// Shared tracks of one kind.
const MAX_LANES: usize = 32;

/// The track of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// The track of this number; the first slice of a number begins its track.
    Shared(usize),
    /// A track without other slices.
    Own,
}

/// The tracks of one kind, each with the ends of its open slices, the innermost last.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    open: Vec<Vec<u64>>,
    latest: u64,
}

impl Lanes {
    /// The first track on which the slice is inside or after every other. Slices must come in the order of their starts; others
    /// get their own track.
    pub(super) fn assign(&mut self, start: u64, end: u64) -> Lane {
        if start < self.latest {
            return Lane::Own;
        }
        self.latest = start;
        for (number, open) in self.open.iter_mut().enumerate() {
            while open.last().is_some_and(|&inner| inner <= start) {
                open.pop();
            }
            if open.last().is_none_or(|&inner| end <= inner) {
                open.push(end);
                return Lane::Shared(number);
            }
        }
        if self.open.len() >= MAX_LANES {
            return Lane::Own;
        }
        self.open.push(vec![end]);
        Lane::Shared(self.open.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_within_another_shares_its_track_and_one_across_its_end_does_not() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.assign(10, 50), Lane::Shared(0));
        assert_eq!(lanes.assign(10, 50), Lane::Shared(0));
        assert_eq!(lanes.assign(20, 60), Lane::Shared(1));
        assert_eq!(lanes.assign(50, 70), Lane::Shared(0));
        assert_eq!(lanes.assign(50, 50), Lane::Shared(0));
        assert_eq!(lanes.assign(40, 70), Lane::Own);
    }

    #[test]
    fn beyond_the_tracks_that_are_kept_each_slice_has_its_own() {
        let mut lanes = Lanes::default();
        for number in 0..MAX_LANES {
            assert_eq!(lanes.assign(number as u64, 1000 + number as u64), Lane::Shared(number));
        }
        assert_eq!(lanes.assign(100, 5000), Lane::Own);
    }
}
