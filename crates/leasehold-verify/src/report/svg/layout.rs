//! Computes the positions of the lanes, and converts times to x positions.

use super::Size;
use crate::history::RunNanos;
use crate::report::model::TimelineModel;

/// The width at the left of the picture for the lanes' names.
pub(crate) const LANE_NAME_WIDTH: f64 = 58.0;
/// Space above a lane's bars, for its labels.
pub(crate) const LANE_TOP_PADDING: f64 = 15.0;
/// Space below a lane's bars.
pub(crate) const LANE_BOTTOM_PADDING: f64 = 9.0;
/// Space between two rows of a lane.
pub(crate) const ROW_GAP: f64 = 8.0;
/// The height of a line of fault labels.
pub(crate) const LABEL_LINE_HEIGHT: f64 = 15.0;
/// The height of the line of violation numbers.
pub(crate) const BADGE_LINE_HEIGHT: f64 = 22.0;
/// The height below the lanes for the time axis.
pub(crate) const AXIS_HEIGHT: f64 = 26.0;
/// The maximum of lines of fault labels; labels that need more are omitted.
pub(crate) const MAX_LABEL_LINES: usize = 3;

/// The positions of everything in the picture, in pixels.
pub(crate) struct Layout {
    pub(crate) width: f64,
    pub(crate) bar_height: f64,
    /// How many lines of fault labels there are above the lanes.
    pub(crate) label_lines: usize,
    /// The top of the lanes.
    pub(crate) top: f64,
    /// The top and the height of each lane.
    pub(crate) lanes: Vec<(f64, f64)>,
    /// The bottom of the lanes.
    pub(crate) bottom: f64,
    /// The height of the picture, including the axis and without the legend.
    pub(crate) height: f64,
    from: f64,
    to: f64,
}

impl Layout {
    pub(crate) fn new(model: &TimelineModel, size: Size) -> Self {
        let width = f64::from(size.width.clamp(320, 20_000));
        let bar = f64::from(size.bar.clamp(8, 60));
        let (from, to) = (0.0, model.end as f64);
        let mut layout = Self {
            width,
            bar_height: bar,
            label_lines: 0,
            top: 0.0,
            lanes: Vec::new(),
            bottom: 0.0,
            height: 0.0,
            from,
            to,
        };
        layout.label_lines = super::overlay::place_labels(model, &layout, MAX_LABEL_LINES)
            .iter()
            .map(|label| label.line + 1)
            .max()
            .unwrap_or(0);
        let badges = if model.flags.is_empty() { 0.0 } else { BADGE_LINE_HEIGHT };
        layout.top = 6.0 + LABEL_LINE_HEIGHT * layout.label_lines as f64 + badges;
        let mut y = layout.top;
        for lane in &model.lanes {
            let height = LANE_TOP_PADDING + lane.rows as f64 * (bar + ROW_GAP) - ROW_GAP + LANE_BOTTOM_PADDING;
            layout.lanes.push((y, height));
            y += height;
        }
        layout.bottom = y;
        layout.height = y + AXIS_HEIGHT;
        layout
    }

    /// The right edge of the drawing; a margin is left for marks at the very end.
    pub(crate) fn right_edge(&self) -> f64 {
        self.width - 12.0
    }

    /// Converts a time to an x position; times outside the run are clamped.
    pub(crate) fn x(&self, t: RunNanos) -> f64 {
        let part = (t as f64 - self.from) / (self.to - self.from);
        LANE_NAME_WIDTH + part.clamp(0.0, 1.0) * (self.right_edge() - LANE_NAME_WIDTH)
    }

    /// The y position of the top of a bar on this lane and row.
    pub(crate) fn y(&self, lane: usize, row: usize) -> f64 {
        let top = self.lanes.get(lane).map_or(self.top, |(top, _)| *top);
        top + LANE_TOP_PADDING + row as f64 * (self.bar_height + ROW_GAP)
    }

    /// The times of the axis's ticks, and the number of decimal places that their labels need.
    pub(crate) fn axis_ticks(&self) -> (Vec<RunNanos>, usize) {
        let span = (self.to - self.from).max(1.0);
        let least = span / ((self.right_edge() - LANE_NAME_WIDTH) / 90.0).max(1.0);
        let mut unit = 10f64.powf(least.log10().floor());
        let step = loop {
            if let Some(times) = [1.0, 2.0, 5.0].into_iter().find(|times| times * unit >= least) {
                break (times * unit).max(1.0);
            }
            unit *= 10.0;
        };
        let places = (9.0 - step.log10().floor()).clamp(0.0, 9.0) as usize;
        let count = ((self.to - self.from) / step) as u64;
        ((0..=count.min(1_000)).map(|at| (at as f64 * step) as RunNanos).collect(), places)
    }
}

/// An estimate of a text's width: no font metrics are available.
pub(crate) fn text_width(text: &str) -> f64 {
    text.chars().map(|c| if c.is_ascii() { 6.1 } else { 11.0 }).sum()
}

/// Merges neighbouring bars that are narrower than about a pixel. Each item is a bar's left end,
/// right end and index; the items are sorted by their left ends.
pub(crate) fn merge_narrow(items: impl Iterator<Item = (f64, f64, usize)>) -> Vec<MergedBar> {
    let mut out: Vec<MergedBar> = Vec::new();
    for (x, to, at) in items {
        let narrow = to - x < 1.2;
        if let Some(last) = out.last_mut()
            && narrow
            && (last.count > 1 || last.x_end - last.x < 1.2)
            && x - last.x_end < 0.8
        {
            last.x_end = last.x_end.max(to);
            last.count += 1;
        } else {
            out.push(MergedBar { x, x_end: to, first_index: at, count: 1 });
        }
    }
    out
}

/// A bar, or several neighbouring bars that are drawn as one.
pub(crate) struct MergedBar {
    /// The left end.
    pub(crate) x: f64,
    /// The right end.
    pub(crate) x_end: f64,
    /// The index of the first merged bar.
    pub(crate) first_index: usize,
    /// How many bars were merged; 1: a single bar.
    pub(crate) count: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_axis_has_few_ticks_at_round_times() {
        let of = |end: RunNanos| {
            let run = TimelineModel { end, ..TimelineModel::default() };
            Layout::new(&run, Size { width: 1100, ..Size::default() }).axis_ticks()
        };
        assert_eq!(of(10_000_000_000), ((0..=10).map(|at| at * 1_000_000_000).collect(), 0));
        assert_eq!(of(1_000_000_000), ((0..=10).map(|at| at * 100_000_000).collect(), 1));
        for end in [1, 7, 999, 12_345, 86_400_000_000_000, u64::MAX] {
            let count = of(end).0.len();
            assert!((1..=13).contains(&count), "{count} ticks for {end}");
        }
    }

    #[test]
    fn narrow_adjacent_bars_are_merged() {
        let items = [(0.0, 0.4), (0.5, 0.9), (1.0, 1.3), (5.0, 5.2), (5.3, 40.0), (40.1, 40.2)];
        let merged = merge_narrow(items.into_iter().enumerate().map(|(at, (x, to))| (x, to, at)));
        let counts: Vec<(usize, usize)> = merged.iter().map(|one| (one.first_index, one.count)).collect();
        assert_eq!(counts, [(0, 3), (3, 1), (4, 1), (5, 1)]);
    }
}
