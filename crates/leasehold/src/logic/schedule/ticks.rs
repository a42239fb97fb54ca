//! Nominal times, in seconds since 1970 (UTC).

/// A schedule. `next` must depend on `after` only, and must return the smallest tick above it.
pub trait Ticks {
    /// The first tick after `after`.
    fn next(&self, after: i64) -> Option<i64>;
}

/// Ticks that are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The newest of them, in ascending order.
    pub ticks: Vec<i64>,
    /// Whether older ones were left out.
    pub more: bool,
}

/// The newest `most` ticks after `after` and up to `until`. Examines few more than it returns,
/// however long that time is.
pub fn due(timetable: &dyn Ticks, after: i64, until: i64, most: usize) -> Due {
    let mut window = 3600;
    loop {
        let from = until.saturating_sub(window).max(after);
        let mut ticks = Vec::new();
        let mut last = from;
        while let Some(next) = timetable.next(last).filter(|next| *next <= until && *next > last) {
            ticks.push(next);
            last = next;
        }
        if from == after || ticks.len() >= most {
            let surplus = ticks.len().saturating_sub(most);
            let first = ticks.drain(..surplus).next();
            let oldest = ticks.first().copied().unwrap_or(until);
            let more = first.is_some() || timetable.next(after).is_some_and(|next| next < oldest && next <= until);
            return Due { ticks, more };
        }
        window = window.saturating_mul(2);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every this many seconds.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Every(pub(crate) i64);

    impl Ticks for Every {
        fn next(&self, after: i64) -> Option<i64> {
            Some((after.div_euclid(self.0) + 1) * self.0)
        }
    }

    struct Never;

    impl Ticks for Never {
        fn next(&self, _: i64) -> Option<i64> {
            None
        }
    }

    #[test]
    fn the_end_of_a_timetable_is_no_tick() {
        assert_eq!(due(&Never, 0, 100_000, 5), Due::default());
    }

    proptest! {
        #[test]
        fn the_newest_are_given_and_the_rest_is_told(
            period in 1i64..5000, after in -50_000i64..50_000, length in 0i64..100_000, most in 1usize..50,
        ) {
            let all: Vec<i64> = (after + 1..=after + length).filter(|t| t.rem_euclid(period) == 0).collect();
            let found = due(&Every(period), after, after + length, most);
            let newest = &all[all.len().saturating_sub(most)..];
            prop_assert_eq!(&found.ticks[..], newest);
            prop_assert_eq!(found.more, all.len() > most);
        }
    }
}
