//! The layout: the positions of the lanes, and times as x positions.

use super::Size;
use crate::history::Nanos;
use crate::report::model::Run;

/// Width for the lanes' names.
pub(crate) const GUTTER: f64 = 58.0;
/// Space above a lane's bars, for its labels.
pub(crate) const ABOVE: f64 = 15.0;
/// Space below a lane's bars.
pub(crate) const BELOW: f64 = 9.0;
/// Space between two rows of a lane.
pub(crate) const BETWEEN: f64 = 8.0;
/// The height of a line of fault labels.
pub(crate) const LINE: f64 = 15.0;
/// The height of the line of violation numbers.
pub(crate) const BADGES: f64 = 22.0;
/// Space for the axis.
pub(crate) const AXIS: f64 = 26.0;
/// The maximum of label lines; further ones are omitted.
pub(crate) const MOST_LINES: usize = 3;

/// The positions of all elements.
pub(crate) struct Frame {
    pub(crate) width: f64,
    pub(crate) bar: f64,
    /// How many lines of fault labels there are above the lanes.
    pub(crate) lines: usize,
    /// The top of the lanes.
    pub(crate) top: f64,
    /// The top and the height of each lane.
    pub(crate) lanes: Vec<(f64, f64)>,
    /// The bottom of the lanes.
    pub(crate) bottom: f64,
    /// The bottom, including the axis.
    pub(crate) height: f64,
    from: f64,
    to: f64,
}

impl Frame {
    pub(crate) fn new(run: &Run, size: Size) -> Self {
        let width = f64::from(size.width.clamp(320, 20_000));
        let bar = f64::from(size.bar.clamp(8, 60));
        let (from, to) = (0.0, run.end as f64);
        let mut frame = Self { width, bar, lines: 0, top: 0.0, lanes: Vec::new(), bottom: 0.0, height: 0.0, from, to };
        frame.lines =
            super::over::labels(run, &frame, MOST_LINES).iter().map(|label| label.line + 1).max().unwrap_or(0);
        let badges = if run.flags.is_empty() { 0.0 } else { BADGES };
        frame.top = 6.0 + LINE * frame.lines as f64 + badges;
        let mut y = frame.top;
        for lane in &run.lanes {
            let height = ABOVE + lane.rows as f64 * (bar + BETWEEN) - BETWEEN + BELOW;
            frame.lanes.push((y, height));
            y += height;
        }
        frame.bottom = y;
        frame.height = y + AXIS;
        frame
    }

    /// The right edge of the drawing; a margin is left for marks at the very end.
    pub(crate) fn right(&self) -> f64 {
        self.width - 12.0
    }

    /// A time's x position.
    pub(crate) fn x(&self, t: Nanos) -> f64 {
        let part = (t as f64 - self.from) / (self.to - self.from);
        GUTTER + part.clamp(0.0, 1.0) * (self.right() - GUTTER)
    }

    /// The top of a bar.
    pub(crate) fn y(&self, lane: usize, row: usize) -> f64 {
        let top = self.lanes.get(lane).map_or(self.top, |(top, _)| *top);
        top + ABOVE + row as f64 * (self.bar + BETWEEN)
    }

    /// The times of the axis, and the decimal places that they need.
    pub(crate) fn ticks(&self) -> (Vec<Nanos>, usize) {
        let span = (self.to - self.from).max(1.0);
        let least = span / ((self.right() - GUTTER) / 90.0).max(1.0);
        let mut unit = 10f64.powf(least.log10().floor());
        let step = loop {
            if let Some(times) = [1.0, 2.0, 5.0].into_iter().find(|times| times * unit >= least) {
                break (times * unit).max(1.0);
            }
            unit *= 10.0;
        };
        let places = (9.0 - step.log10().floor()).clamp(0.0, 9.0) as usize;
        let count = ((self.to - self.from) / step) as u64;
        ((0..=count.min(1_000)).map(|at| (at as f64 * step) as Nanos).collect(), places)
    }
}

/// An estimate of a text's width: no font metrics are available.
pub(crate) fn text_width(text: &str) -> f64 {
    text.chars().map(|c| if c.is_ascii() { 6.1 } else { 11.0 }).sum()
}

/// Merges bars that are too narrow to be distinguished. The items are sorted by their left ends;
/// each is a start, an end and an index.
pub(crate) fn merged(items: impl Iterator<Item = (f64, f64, usize)>) -> Vec<Merged> {
    let mut out: Vec<Merged> = Vec::new();
    for (x, to, at) in items {
        let narrow = to - x < 1.2;
        if let Some(last) = out.last_mut()
            && narrow
            && (last.count > 1 || last.to - last.x < 1.2)
            && x - last.to < 0.8
        {
            last.to = last.to.max(to);
            last.count += 1;
        } else {
            out.push(Merged { x, to, at, count: 1 });
        }
    }
    out
}

/// A bar, or several merged ones.
pub(crate) struct Merged {
    pub(crate) x: f64,
    pub(crate) to: f64,
    /// The first one.
    pub(crate) at: usize,
    pub(crate) count: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_has_few_round_ticks() {
        let of = |end: Nanos| {
            let run = Run { end, ..Run::default() };
            Frame::new(&run, Size { width: 1100, ..Size::default() }).ticks()
        };
        assert_eq!(of(10_000_000_000), ((0..=10).map(|at| at * 1_000_000_000).collect(), 0));
        assert_eq!(of(1_000_000_000), ((0..=10).map(|at| at * 100_000_000).collect(), 1));
        for end in [1, 7, 999, 12_345, 86_400_000_000_000, u64::MAX] {
            let count = of(end).0.len();
            assert!((1..=13).contains(&count), "{count} ticks for {end}");
        }
    }

    #[test]
    fn what_is_narrow_and_near_is_one() {
        let items = [(0.0, 0.4), (0.5, 0.9), (1.0, 1.3), (5.0, 5.2), (5.3, 40.0), (40.1, 40.2)];
        let merged = merged(items.into_iter().enumerate().map(|(at, (x, to))| (x, to, at)));
        let counts: Vec<(usize, usize)> = merged.iter().map(|one| (one.at, one.count)).collect();
        assert_eq!(counts, [(0, 3), (3, 1), (4, 1), (5, 1)]);
    }
}
