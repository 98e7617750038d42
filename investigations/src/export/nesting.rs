//! Slices of one track must nest: which of several tracks a slice goes to so that they do.

/// Tracks of one kind that are looked at for room.
const MAX_LANES: usize = 32;

/// Where a slice goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// To the track of this number; the first slice of a number begins its track.
    Shared(usize),
    /// To a track that has no other slice.
    Own,
}

/// The tracks of one kind, by the ends of the slices that are open on them, the innermost last.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    open: Vec<Vec<u64>>,
    latest: u64,
}

impl Lanes {
    /// The first track on which a slice is in, or after, every other. Slices come in the order of their starts; one that does
    /// not is on a track of its own.
    pub(super) fn place(&mut self, start: u64, end: u64) -> Lane {
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
        assert_eq!(lanes.place(10, 50), Lane::Shared(0));
        assert_eq!(lanes.place(10, 50), Lane::Shared(0));
        assert_eq!(lanes.place(20, 60), Lane::Shared(1));
        assert_eq!(lanes.place(50, 70), Lane::Shared(0));
        assert_eq!(lanes.place(50, 50), Lane::Shared(0));
        assert_eq!(lanes.place(40, 70), Lane::Own);
    }

    #[test]
    fn beyond_the_tracks_that_are_kept_each_slice_has_its_own() {
        let mut lanes = Lanes::default();
        for number in 0..MAX_LANES {
            assert_eq!(lanes.place(number as u64, 1000 + number as u64), Lane::Shared(number));
        }
        assert_eq!(lanes.place(100, 5000), Lane::Own);
    }
}
