//! An open page, and what it should show according to the analysis.

use crate::chromium::Page;
use lean_timeline::Snapshot;
use lean_timeline::analysis::{Peak, Totals, moments};
use lean_timeline::snapshot::Category;
use lean_timeline::viewer::html;
use serde::Deserialize;
use std::fs;
use tempfile::TempDir;

/// A test and its name.
pub(crate) type Test = (&'static str, fn());

/// The view as the page reports it.
#[derive(Debug, Deserialize, PartialEq)]
pub(crate) struct View {
    pub(crate) first: usize,
    pub(crate) last: usize,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl View {
    pub(crate) fn ticks(&self) -> usize {
        self.last - self.first + 1
    }

    /// Fails unless it has `tick`, and fewer ticks than `ticks`.
    pub(crate) fn is_near(&self, tick: usize, ticks: usize) {
        let has_tick = self.first <= tick && tick <= self.last;
        assert!(has_tick && self.ticks() < ticks, "{self:?}");
    }

    /// Fails unless it goes from one tick to another, up to so many beside them.
    pub(crate) fn is_about(&self, [first, last]: [usize; 2], beside: usize) {
        let off = self.first.abs_diff(first).max(self.last.abs_diff(last));
        assert!(off <= beside, "{self:?} is not {first} to {last}");
    }
}

#[derive(Deserialize)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

/// A page and its folder.
pub(crate) struct Opened {
    pub(crate) page: Page,
    pub(crate) url: String,
    _folder: TempDir,
}

impl Opened {
    pub(crate) fn ask<T: serde::de::DeserializeOwned>(&mut self, panel: usize, what: &str) -> T {
        self.page
            .evaluate(&format!("burnMemory.panels[{panel}].{what}"))
    }

    pub(crate) fn view(&mut self, panel: usize) -> View {
        self.ask(panel, "view()")
    }

    pub(crate) fn point(&mut self, panel: usize, tick: usize, bytes: u64) -> (f64, f64) {
        let Point { x, y } = self.ask(panel, &format!("point({tick}, {bytes})"));
        (x, y)
    }

    pub(crate) fn show_events(&mut self) {
        self.page.click_on("[value=events]");
    }

    /// Shows events, zoomed in until each of those around `tick` is several pixels wide.
    pub(crate) fn zoom_to(&mut self, tick: usize) {
        self.show_events();
        let at = self.point(0, tick, 0);
        self.page.wheel((at.0, at.1 - 50.0), 12);
    }

    /// The highest pixel of a panel's picture that has a colour of a category, in the column at `x` or
    /// in all; the rest is grey.
    pub(crate) fn highest(&mut self, panel: usize, x: Option<f64>) -> Point {
        let columns = match x {
            Some(x) => format!("[Math.floor({x} - left), Math.floor({x} - left) + 1]"),
            None => "[0, width]".into(),
        };
        self.page.evaluate(&format!(
            "(() => {{
                const base = document.querySelector(
                    '[data-testid=panel-{panel}] [data-role=base]');
                const {{ left, top }} = base.getBoundingClientRect();
                const {{ width, height }} = base;
                const {{ data }} = base.getContext('2d').getImageData(0, 0, width, height);
                const [from, until] = {columns};
                for (let y = 60; y < height; y++) {{
                    for (let x = from; x < until; x++) {{
                        const at = 4 * (y * width + x);
                        const [red, green, blue, alpha] = data.slice(at, at + 4);
                        const most = Math.max(red, green, blue);
                        if (alpha === 255 && most - Math.min(red, green, blue) > 60) {{
                            return {{ x: left + x, y: top + y }};
                        }}
                    }}
                }}
            }})()"
        ))
    }

    /// The colour of the first panel's canvas at a tick and a height, or some rows lower.
    pub(crate) fn colour(&mut self, canvas: &str, tick: usize, bytes: u64, rows: i32) -> [u8; 4] {
        let (x, y) = self.point(0, tick, bytes);
        self.page.evaluate(&format!(
            "(() => {{
                const canvas = document.querySelector('[data-role={canvas}]');
                const {{ left, top }} = canvas.getBoundingClientRect();
                const [x, y] = [Math.floor({x} - left), Math.round({y} - top) + {rows}];
                return Array.from(canvas.getContext('2d').getImageData(x, y, 1, 1).data);
            }})()"
        ))
    }

    /// Fails if the page has said anything to the console.
    pub(crate) fn is_fine(&mut self) {
        assert_eq!(self.page.problems(), Vec::<String>::new());
    }

    pub(crate) fn fact(&mut self, name: &str) -> String {
        self.page
            .text(&format!("[data-testid=tooltip] [data-fact={name}]"))
    }
}

pub(crate) fn open_one(snapshot: &Snapshot) -> Opened {
    open(std::slice::from_ref(snapshot))
}

pub(crate) fn open(snapshots: &[Snapshot]) -> Opened {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("page.html");
    fs::write(&file, html::page(snapshots).unwrap()).unwrap();
    Opened {
        page: Page::open(&file),
        url: format!("file://{}", file.display()),
        _folder: folder,
    }
}

/// A holder in a column of the stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layer {
    pub(crate) bytes: u64,
    pub(crate) category: Category,
    /// `None` for the workspace of an operation.
    pub(crate) holder: Option<usize>,
    pub(crate) operation: Option<usize>,
}

/// The holders drawn at a tick, from the bottom up. Workspaces are at the top; at the peak with the
/// bytes in use that no holder has.
pub(crate) fn pile(snapshot: &Snapshot, tick: usize) -> Vec<Layer> {
    let mut pile = Vec::new();
    for category in Category::ALL {
        let holders = snapshot.holders.iter().enumerate();
        let alive = holders.filter(|(_, holder)| {
            holder.category == category && holder.from <= tick && tick < holder.until
        });
        pile.extend(alive.map(|(number, holder)| Layer {
            bytes: holder.bytes,
            category,
            holder: Some(number),
            operation: Some(holder.operation),
        }));
    }
    let totals = Totals::of(snapshot);
    let peak = Peak::of(snapshot, &totals).unwrap();
    let mut in_use = 0;
    let mut workspace: Option<Layer> = None;
    for moment in moments(snapshot, &totals) {
        let before = std::mem::replace(&mut in_use, moment.sample.in_use);
        let is_more = moment.sample.peak > before.max(in_use) || tick == peak.tick;
        if moment.tick == tick && is_more && workspace.is_none_or(|of| of.bytes < moment.workspace)
        {
            workspace = Some(Layer {
                bytes: moment.workspace,
                category: Category::Temporaries,
                holder: None,
                operation: moment.sample.operation,
            });
        }
    }
    pile.extend(workspace);
    pile
}

pub(crate) fn bytes_text(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1024 => return format!("{bytes} B"),
        1024..0x10_0000 => (1 << 10, "KiB"),
        _ => (1 << 20, "MiB"),
    };
    let tenths = (20 * bytes + unit) / (2 * unit);
    let (whole, tenth) = (tenths / 10, tenths % 10);
    match whole {
        0..1000 => format!("{whole}.{tenth} {name}"),
        _ => format!("{},{:03}.{tenth} {name}", whole / 1000, whole % 1000),
    }
}

pub(crate) fn category_text(category: Category) -> &'static str {
    match category {
        Category::Parameters => "parameter",
        Category::OptimizerState => "optimizer state",
        Category::Other => "other",
        Category::Activations => "activation",
        Category::Gradients => "gradient",
        Category::Temporaries => "temporary",
    }
}

pub(crate) fn peak(snapshot: &Snapshot) -> Peak {
    Peak::of(snapshot, &Totals::of(snapshot)).unwrap()
}
