//! The plot: the items of every peak.

use super::mib;
use crate::results::{Case, Phase, Results, Run};
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: u32 = 1000;
const LEFT: i32 = 260;
const RIGHT: i32 = 90;
const BAR: i32 = 20;
const GAP: i32 = 8;
const TITLE: i32 = 44;
const LEGEND: i32 = 64;
const FONT: &str = "sans-serif";

const PARTS: [(&str, RGBColor); 5] = [
    ("parameters", RGBColor(68, 84, 106)),
    ("optimizer state", RGBColor(124, 144, 172)),
    ("activations", RGBColor(86, 156, 104)),
    ("gradients", RGBColor(201, 88, 66)),
    ("temporaries", RGBColor(226, 186, 86)),
];

/// The plot as SVG: one bar for every run that counted bytes, one block for each model and batch
/// size.
pub fn plot(results: &Results) -> Result<String> {
    let mut blocks: Vec<(&Case, Vec<&Run>)> = Vec::new();
    for run in &results.runs {
        if run.repetition > 0 || run.items.is_none() {
            continue;
        }
        match blocks.iter_mut().find(|(case, _)| **case == run.case) {
            Some((_, runs)) => runs.push(run),
            None => blocks.push((&run.case, vec![run])),
        }
    }
    let height: i32 = blocks
        .iter()
        .map(|(_, runs)| TITLE + runs.len() as i32 * (BAR + GAP))
        .sum();
    let mut svg = String::new();
    draw(
        &mut svg,
        &blocks,
        (LEGEND + height + GAP).max(LEGEND) as u32,
    )
    .map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    blocks: &[(&Case, Vec<&Run>)],
    height: u32,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let text = |size: i32| TextStyle::from((FONT, size).into_font()).color(&BLACK);
    let right = text(13).pos(Pos::new(HPos::Right, VPos::Center));
    let left = text(13).pos(Pos::new(HPos::Left, VPos::Center));

    area.draw(&Text::new(
        "Peak memory of a training step",
        (16, 10),
        text(18),
    ))?;
    let mut x = LEFT;
    for (name, color) in PARTS {
        area.draw(&Rectangle::new([(x, 40), (x + 14, 54)], color.filled()))?;
        area.draw(&Text::new(name, (x + 20, 47), left.clone()))?;
        x += 34 + 8 * name.len() as i32;
    }

    let mut y = LEGEND;
    for (case, runs) in blocks {
        let title = text(15).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(case.title(), (16, y + TITLE / 2), title))?;
        y += TITLE;
        let most = runs.iter().map(|run| peak(run)).max().unwrap_or(1).max(1);
        let scale = f64::from(WIDTH as i32 - LEFT - RIGHT) / most as f64;
        for run in runs {
            let name = format!("{}: {}", run.subject.place(), run.subject.name());
            area.draw(&Text::new(name, (LEFT - 8, y + BAR / 2), right.clone()))?;
            let mut sum = 0;
            for (bytes, (_, color)) in parts(run).into_iter().zip(PARTS) {
                let from = LEFT + (sum as f64 * scale) as i32;
                sum += bytes;
                let to = LEFT + (sum as f64 * scale) as i32;
                area.draw(&Rectangle::new([(from, y), (to, y + BAR)], color.filled()))?;
            }
            let label = format!("{} MiB", mib(peak(run)));
            let end = LEFT + (sum as f64 * scale) as i32;
            area.draw(&Text::new(label, (end + 6, y + BAR / 2), left.clone()))?;
            y += BAR + GAP;
        }
    }
    area.present()?;
    Ok(())
}

fn peak(run: &Run) -> u64 {
    run.measured.memory.map_or(0, |memory| memory.peak_bytes)
}

/// The bytes of each of [`PARTS`], which add up to the peak.
fn parts(run: &Run) -> [u64; 5] {
    let Some(items) = &run.items else {
        return [0; 5];
    };
    let is_gradients = match items.peak_in {
        Phase::Forward => false,
        Phase::Backward => items.gradients > items.activations,
        Phase::Step => true,
    };
    let (activations, gradients) = if is_gradients {
        (0, items.held)
    } else {
        (items.held, 0)
    };
    let temporaries = items.temporaries.max(0) as u64;
    [
        items.parameters,
        items.optimizer_state,
        activations,
        gradients,
        temporaries,
    ]
}
