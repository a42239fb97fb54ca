//! Nominal times, in seconds since 1970 (UTC).

/// The ticks of a schedule, in seconds since 1970 (UTC).
pub trait Ticks {
    /// The smallest tick above `after`; `None` if there is none. Must depend on `after` only.
    fn next(&self, after: i64) -> Option<i64>;
}

/// Ticks that are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueTicks {
    /// The newest due ticks, in ascending order.
    pub ticks: Vec<i64>,
    /// Whether older due ticks were left out.
    pub has_more: bool,
}

/// The newest `limit` ticks later than `after` and not later than `until`. Examines few more than
/// it returns, for any length of time.
pub fn due_ticks(schedule: &dyn Ticks, after: i64, until: i64, limit: usize) -> DueTicks {
    let mut window = 3600;
    loop {
        let from = until.saturating_sub(window).max(after);
        let mut ticks = Vec::new();
        let mut last = from;
        while let Some(next) = schedule.next(last).filter(|next| *next <= until && *next > last) {
            ticks.push(next);
            last = next;
        }
        if from == after || ticks.len() >= limit {
            let surplus = ticks.len().saturating_sub(limit);
            let first = ticks.drain(..surplus).next();
            let oldest = ticks.first().copied().unwrap_or(until);
            let more = first.is_some() || schedule.next(after).is_some_and(|next| next < oldest && next <= until);
            return DueTicks { ticks, has_more: more };
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

    struct NoTicks;

    impl Ticks for NoTicks {
        fn next(&self, _: i64) -> Option<i64> {
            None
        }
    }

    #[test]
    fn the_end_of_a_schedule_is_not_a_tick() {
        assert_eq!(due_ticks(&NoTicks, 0, 100_000, 5), DueTicks::default());
    }

    proptest! {
        #[test]
        fn the_newest_ticks_are_returned_and_omissions_are_reported(
            period in 1i64..5000, after in -50_000i64..50_000, length in 0i64..100_000, most in 1usize..50,
        ) {
            let all: Vec<i64> = (after + 1..=after + length).filter(|t| t.rem_euclid(period) == 0).collect();
            let found = due_ticks(&Every(period), after, after + length, most);
            let newest = &all[all.len().saturating_sub(most)..];
            prop_assert_eq!(&found.ticks[..], newest);
            prop_assert_eq!(found.has_more, all.len() > most);
        }
    }
}
