//! The picture: the bytes of each category over time as stacked areas, in SVG.

use super::text::{count, escape, fit, mib};
use crate::analysis::{Peak, Totals, moments};
use crate::snapshot::{Category, PhaseKind, Snapshot};
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeSet;
use std::ops::Range;

const WIDTH: i32 = 800;
const HEIGHT: i32 = 430;
const MARGIN: i32 = 16;
/// Room for the numbers at the y axis.
const LEFT: i32 = 62;
const GAP: i32 = 36;
const LEGEND: i32 = 40;
const TITLE: i32 = 30;
/// Height of the band with the phases.
const BAND: i32 = 22;
/// The narrowest phase that is drawn, in pixels.
const NARROW: i32 = 4;
const BOTTOM: i32 = 34;
const FONT: &str = "sans-serif";

/// Height of the y axis as a multiple of the peak, which leaves room for the label above it.
const HEADROOM: f64 = 1.13;

/// The background, so that the picture looks the same on every page, and the text on it.
const PAPER: RGBColor = RGBColor(255, 255, 255);
const INK: RGBColor = RGBColor(31, 35, 40);
const FAINT: RGBColor = RGBColor(208, 215, 222);

/// The palette of Okabe and Ito, which colour-blind people can tell apart.
fn color(category: Category) -> RGBColor {
    match category {
        Category::Parameters => RGBColor(0, 114, 178),
        Category::OptimizerState => RGBColor(86, 180, 233),
        Category::Other => RGBColor(140, 140, 140),
        Category::Activations => RGBColor(0, 158, 115),
        Category::Gradients => RGBColor(213, 94, 0),
        Category::Temporaries => RGBColor(240, 180, 0),
    }
}

/// The name of a phase, its short name, and its colour in the band.
fn band(kind: PhaseKind) -> Option<(&'static str, &'static str, RGBColor)> {
    match kind {
        PhaseKind::Forward => Some(("forward", "fwd", RGBColor(221, 228, 235))),
        PhaseKind::Backward => Some(("backward", "bwd", RGBColor(191, 202, 214))),
        PhaseKind::Optimizer => Some(("optimizer", "opt", RGBColor(240, 224, 214))),
        PhaseKind::Step(_) => None,
    }
}

/// The picture of one snapshot, or of two side by side on one scale.
///
/// # Errors
///
/// There is nothing to draw.
pub fn svg(snapshots: &[Snapshot]) -> Result<String> {
    if let Some(empty) = snapshots.iter().find(|of| of.times.is_empty()) {
        return Err(anyhow!(
            "nothing was recorded in {:?}: there is nothing to draw",
            empty.title
        ));
    }
    let mut svg = String::new();
    draw(&mut svg, snapshots).map_err(|error| anyhow!("cannot draw the picture: {error}"))?;
    let titles: Vec<&str> = snapshots.iter().map(|of| of.title.as_str()).collect();
    let label = fit(&format!("Memory over time: {}", titles.join("; ")), 200);
    // For screen readers; the SVG backend has no way to write it.
    let described = format!("<svg role=\"img\" aria-label=\"{}\" ", escape(&label));
    Ok(svg.replacen("<svg ", &described, 1))
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw(svg: &mut String, snapshots: &[Snapshot]) -> Drawn {
    let area = SVGBackend::with_string(svg, (WIDTH as u32, HEIGHT as u32)).into_drawing_area();
    area.fill(&PAPER)?;
    let frame = [(0, 0), (WIDTH - 1, HEIGHT - 1)];
    area.draw(&Rectangle::new(frame, FAINT.stroke_width(1)))?;

    let shown = snapshots.len() as i32;
    let width = (WIDTH - LEFT - MARGIN - GAP * (shown - 1)) / shown;
    let panels: Vec<Panel<'_>> = snapshots
        .iter()
        .zip(0..)
        .map(|(snapshot, place)| {
            let left = LEFT + place * (width + GAP);
            Panel::new(snapshot, left..left + width)
        })
        .collect();
    let most = panels.iter().map(Panel::most).max().unwrap_or(0).max(1);
    let scale = Scale::new(most);

    legend(&area, &panels, &scale)?;
    for panel in &panels {
        panel.draw(&area, &scale)?;
    }
    area.present()?;
    Ok(())
}

/// The style of a text with its size in pixels; `horizontal` aligns it at the point where it is
/// drawn.
fn text(size: i32, horizontal: HPos) -> TextStyle<'static> {
    // The SVG backend divides by this factor.
    let size = f64::from(size) * 1.24;
    TextStyle::from((FONT, size).into_font())
        .color(&INK)
        .pos(Pos::new(horizontal, VPos::Center))
}

/// An estimate of the width of a text, in pixels, as no font is known here.
fn breadth(text: &str, size: i32) -> i32 {
    text.chars().count() as i32 * size * 60 / 100
}

/// The legend, with the categories that are high enough to be seen.
fn legend(area: &Area<'_>, panels: &[Panel<'_>], scale: &Scale) -> Drawn {
    let mut x = LEFT;
    for category in Category::ALL.into_iter().rev() {
        let is_seen = |panel: &Panel<'_>| {
            let columns = panel.columns.iter().flatten();
            let most = columns.map(|layers| layers[category.layer()]).max();
            scale.y(most.unwrap_or(0) as f64) < scale.bottom
        };
        if !panels.iter().any(is_seen) {
            continue;
        }
        let swatch = [(x, 14), (x + 14, 28)];
        area.draw(&Rectangle::new(swatch, color(category).filled()))?;
        area.draw(&Text::new(
            category.name(),
            (x + 20, 21),
            text(13, HPos::Left),
        ))?;
        x += 36 + breadth(category.name(), 13);
    }
    Ok(())
}

/// Bytes to pixels, for all panels.
struct Scale {
    most: f64,
    bottom: i32,
    top: i32,
    /// Bytes between two grid lines.
    tick: f64,
    unit: &'static str,
    /// Bytes in the unit.
    factor: f64,
}

impl Scale {
    fn new(most: u64) -> Self {
        let (unit, factor) = match most {
            0..0x4000 => ("bytes", 1.0),
            0x4000..0x100_0000 => ("KiB", f64::from(1 << 10)),
            0x100_0000..0x4_0000_0000 => ("MiB", f64::from(1 << 20)),
            _ => ("GiB", f64::from(1 << 30)),
        };
        let most = most as f64 * HEADROOM;
        // About six lines, at 1, 2 or 5 times a power of ten.
        let rough = most / factor / 6.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|times| times * power)
            .find(|step| *step >= rough)
            .unwrap_or(power);
        Self {
            most,
            bottom: HEIGHT - BOTTOM - BAND,
            top: LEGEND + TITLE,
            tick: step * factor,
            unit,
            factor,
        }
    }

    fn y(&self, bytes: f64) -> i32 {
        let height = f64::from(self.bottom - self.top);
        self.bottom - (bytes / self.most * height).round() as i32
    }

    /// The grid lines, each with its bytes and its label.
    fn lines(&self) -> impl Iterator<Item = (f64, String)> {
        let count = (self.most / self.tick) as usize;
        (0..=count).map(|number| {
            let bytes = number as f64 * self.tick;
            let decimals = usize::from(self.tick < self.factor);
            (bytes, format!("{:.decimals$}", bytes / self.factor))
        })
    }
}

/// The bytes of each category at a tick.
type Layers = [u64; Category::ALL.len()];

fn sum(layers: &Layers) -> u64 {
    layers.iter().sum()
}

/// The plot of one snapshot over its whole time.
struct Panel<'a> {
    snapshot: &'a Snapshot,
    peak: Option<Peak>,
    x: Range<i32>,
    /// The fullest tick of each column of pixels; `None` before the first tick.
    columns: Vec<Option<Layers>>,
}

impl<'a> Panel<'a> {
    fn new(snapshot: &'a Snapshot, x: Range<i32>) -> Self {
        let totals = Totals::of(snapshot);
        let peak = Peak::of(snapshot, &totals);
        let mut panel = Self {
            snapshot,
            peak,
            columns: vec![None; x.len() + 1],
            x,
        };
        panel.sweep(&totals);
        panel
    }

    fn sweep(&mut self, totals: &Totals) {
        let layers = |tick: usize| Category::ALL.map(|category| totals.layer(category)[tick]);
        let first = self.x.start;
        let at = |panel: &Self, tick| (panel.place(tick) - first) as usize;
        let see = |seen: &mut Option<Layers>, layers: Layers| {
            if seen.is_none_or(|seen| sum(&layers) > sum(&seen)) {
                *seen = Some(layers);
            }
        };
        let mut last = None;
        for tick in 0..self.snapshot.times.len() {
            let place = at(self, tick);
            // The bytes of a tick last until the next tick.
            if let Some((before, layers)) = last {
                for seen in &mut self.columns[before..=place] {
                    see(seen, layers);
                }
            }
            let layers = layers(tick);
            see(&mut self.columns[place], layers);
            last = Some((place, layers));
        }
        for moment in moments(self.snapshot, totals) {
            let mut layers = layers(moment.tick);
            layers[Category::Temporaries.layer()] += moment.workspace;
            let place = at(self, moment.tick);
            see(&mut self.columns[place], layers);
        }
    }

    /// The x coordinate of a tick.
    fn place(&self, tick: usize) -> i32 {
        let times = &self.snapshot.times;
        let (from, until) = (times[0], times[times.len() - 1]);
        let time = times[tick.min(times.len() - 1)] - from;
        // All ticks may have the same time.
        let part = time as f64 / (until - from).max(1) as f64;
        self.x.start + (part * self.x.len() as f64).round() as i32
    }

    fn most(&self) -> u64 {
        let columns = self.columns.iter().flatten().map(sum).max();
        let peak = self.peak.as_ref().map(|peak| peak.bytes);
        columns.max(peak).unwrap_or(0)
    }

    fn draw(&self, area: &Area<'_>, scale: &Scale) -> Drawn {
        self.draw_axes(area, scale)?;
        self.draw_layers(area, scale)?;
        self.draw_phases(area, scale)?;
        self.draw_peak(area, scale)?;
        let room = (self.x.end - self.x.start) * 100 / (14 * 58);
        let title = fit(&self.snapshot.title, room as usize);
        let at = (self.x.start, LEGEND + TITLE / 2 - 3);
        let bold = (FONT, 14.0 * 1.24).into_font().style(FontStyle::Bold);
        let style = TextStyle::from(bold)
            .color(&INK)
            .pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(title, at, style))?;
        Ok(())
    }

    fn draw_axes(&self, area: &Area<'_>, scale: &Scale) -> Drawn {
        let Range { start, end } = self.x;
        let is_first = start == LEFT;
        for (bytes, label) in scale.lines() {
            let y = scale.y(bytes);
            area.draw(&PathElement::new([(start, y), (end, y)], FAINT))?;
            if is_first {
                area.draw(&Text::new(label, (start - 6, y), text(13, HPos::Right)))?;
            }
        }
        if is_first {
            let at = (start - 6, scale.top - 6);
            area.draw(&Text::new(scale.unit, at, text(13, HPos::Right)))?;
        }
        let times = &self.snapshot.times;
        let lasted = super::text::time(times[times.len() - 1] - times[0]);
        let y = HEIGHT - BOTTOM / 2;
        area.draw(&Text::new("0", (start, y), text(13, HPos::Left)))?;
        area.draw(&Text::new(lasted, (end, y), text(13, HPos::Right)))?;
        area.draw(&Text::new(
            "time",
            ((start + end) / 2, y),
            text(13, HPos::Center),
        ))?;
        Ok(())
    }

    /// Draws each layer down to the x axis, from the highest to the lowest. This takes half the
    /// points of areas with two edges, and leaves no gaps between them.
    fn draw_layers(&self, area: &Area<'_>, scale: &Scale) -> Drawn {
        for category in Category::ALL.into_iter().rev() {
            let up_to = category.layer();
            let height = |column: &Option<Layers>| {
                column.map_or(0, |layers| layers[..=up_to].iter().sum::<u64>())
            };
            let mut points = vec![(self.x.start, scale.bottom)];
            let edge = self.columns.iter().zip(self.x.start..);
            points.extend(edge.map(|(column, x)| (x, scale.y(height(column) as f64))));
            points.push((self.x.end, scale.bottom));
            area.draw(&Polygon::new(points, color(category).filled()))?;
        }
        Ok(())
    }

    fn draw_phases(&self, area: &Area<'_>, scale: &Scale) -> Drawn {
        let (top, bottom) = (scale.bottom + 2, scale.bottom + BAND - 2);
        let middle = (top + bottom) / 2;
        let small = text(12, HPos::Center);
        let label = |text: &str, x: i32| {
            let at = (x, middle);
            area.draw(&Text::new(text.to_string(), at, small.clone()))
        };
        let mut steps = BTreeSet::new();
        let mut is_bare = true;
        for phase in &self.snapshot.phases {
            steps.insert(phase.iteration);
            let Some((name, short, ground)) = band(phase.kind) else {
                continue;
            };
            let (from, until) = (self.place(phase.from), self.place(phase.until));
            // Thousands of narrow phases would make the file large, and could not be told apart.
            if until - from < NARROW {
                continue;
            }
            is_bare = false;
            let bar = [(from, top), (until, bottom)];
            area.draw(&Rectangle::new(bar, ground.filled()))?;
            if until - from >= 2 * NARROW {
                area.draw(&PathElement::new([(from, top), (from, bottom)], PAPER))?;
            }
            let room = until - from - 4;
            let names = [name, short, &name[..1]];
            if let Some(name) = names.into_iter().find(|name| breadth(name, 12) <= room) {
                label(name, (from + until) / 2)?;
            }
        }
        if is_bare && !steps.is_empty() {
            let text = format!("{} steps", count(steps.len()));
            label(&text, (self.x.start + self.x.end) / 2)?;
        }
        Ok(())
    }

    fn draw_peak(&self, area: &Area<'_>, scale: &Scale) -> Drawn {
        let Some(peak) = &self.peak else {
            return Ok(());
        };
        let Range { start, end } = self.x;
        let (x, y) = (self.place(peak.tick), scale.y(peak.bytes as f64));
        let line = [(start, y), (end, y)];
        area.draw(&PathElement::new(line, INK))?;
        area.draw(&Circle::new((x, y), 5, PAPER.filled()))?;
        area.draw(&Circle::new((x, y), 4, INK.filled()))?;
        let label = format!("peak {} MiB", mib(peak.bytes));
        let half = breadth(&label, 14) / 2;
        let at = (
            x.clamp(start + half, (end - half).max(start + half)),
            y - 14,
        );
        area.draw(&Text::new(label, at, text(14, HPos::Center)))?;
        Ok(())
    }
}
