//! The peak, and the part of the recording in view.

use crate::chromium::Modifier;
use crate::synthetic::{Sampled, Training};
use crate::tests;
use crate::visit::{HIGHEST, Point, Test, View, bytes_text, open, peak};
use burn_memory_timeline::Snapshot;
use burn_memory_timeline::snapshot::PhaseKind;

pub(crate) const TESTS: &[Test] = tests![
    the_peak_is_where_the_file_says,
    zooming_keeps_what_is_under_the_cursor,
    zoomed_in_every_step_has_its_name,
    both_axes_show_the_same_ticks
];

fn the_peak_is_where_the_file_says() {
    for sampled in [Sampled::Everywhere, Sampled::AtMarks, Sampled::Nowhere] {
        for training in [Training::plain(), Training::release()] {
            let snapshot = Training {
                sampled,
                ..training
            }
            .snapshot();
            check_peak(&snapshot, &format!("{sampled:?}, {}", snapshot.title));
        }
    }
    // An operation has a workspace that is larger than the largest total of the holders.
    let mut snapshot = Training::plain().snapshot();
    let more = 2 * peak(&snapshot).bytes;
    snapshot.samples[300].peak = more;
    check_peak(&snapshot, "workspace");
}

fn check_peak(snapshot: &Snapshot, context: &str) {
    let peak = peak(snapshot);
    let mut opened = open(std::slice::from_ref(snapshot));
    assert_eq!(opened.ask::<usize>(0, "peak.tick"), peak.tick, "{context}");
    assert_eq!(opened.ask::<u64>(0, "peak.bytes"), peak.bytes, "{context}");
    assert_eq!(
        opened.page.text("[data-testid=peak]"),
        format!("Peak {}", bytes_text(peak.bytes))
    );
    let place = peak.place.unwrap().name(snapshot).to_string();
    let line = opened.page.text("[data-role=where]");
    assert!(
        line.starts_with(&format!("in {place}, ")),
        "{context}: {line}"
    );

    for axis in ["time", "events"] {
        opened.page.click_on(&format!("[value={axis}]"));
        opened.page.rest();
        let (x, y) = opened.point(0, peak.tick, peak.bytes);
        let highest: Point = opened.page.evaluate(HIGHEST);
        assert!(
            (highest.y - y).abs() <= 1.5,
            "{context}: {} is not {y}",
            highest.y
        );
        // Of equally high columns the first: the peak is there or in one to the right.
        assert!(highest.x <= x + 1.5, "{context}: {} is not {x}", highest.x);
        let column: f64 = opened.page.evaluate(&TOP_AT.replace("AT", &x.to_string()));
        assert!((column - y).abs() <= 1.5, "{context}: {column} is not {y}");
    }
}

/// The same for one column.
const TOP_AT: &str = "(() => {
    const base = document.querySelector('[data-role=base]');
    const { left, top } = base.getBoundingClientRect();
    const { data } = base.getContext('2d').getImageData(Math.floor(AT - left), 0, 1, base.height);
    for (let y = 60; y < base.height; y++) {
        const [red, green, blue, alpha] = data.slice(4 * y, 4 * y + 4);
        const isColour = Math.max(red, green, blue) - Math.min(red, green, blue) > 60;
        if (alpha === 255 && isColour) return top + y;
    }
})()";

fn zooming_keeps_what_is_under_the_cursor() {
    let snapshot = Training::plain().snapshot();
    let peak = peak(&snapshot);
    let ticks = snapshot.times.len();
    let mut opened = open(std::slice::from_ref(&snapshot));
    let whole = opened.view(0);
    assert_eq!((whole.first, whole.last), (0, ticks - 1));

    // The wheel, about the cursor.
    let at = opened.point(0, peak.tick, peak.bytes / 2);
    opened.page.wheel(at, 6);
    let near = opened.view(0);
    assert!(
        near.ticks() < ticks / 3 && near.first < peak.tick && peak.tick < near.last,
        "{near:?}"
    );
    let after = opened.point(0, peak.tick, peak.bytes / 2);
    assert!((after.0 - at.0).abs() < 1.0, "{} is not {}", after.0, at.0);
    opened.page.wheel(at, -12);
    assert_eq!(opened.view(0), whole);

    // With Shift it moves along, with Alt it zooms in bytes.
    opened.page.wheel(at, 6);
    let near = opened.view(0);
    opened.page.wheel_with(Modifier::Shift, at, 1);
    let along = opened.view(0);
    assert!(
        along.first < near.first && along.last < near.last,
        "{near:?}, {along:?}"
    );
    opened.page.wheel_with(Modifier::Alt, at, 3);
    let high = opened.view(0);
    assert!(
        high.low > 0.0 && high.high - high.low < whole.high / 1.5,
        "{high:?}"
    );
    let half = peak.bytes as f64 / 2.0;
    assert!(high.low < half && half < high.high, "{high:?}");
    opened.page.click_on("[data-testid=zoom-reset]");
    assert_eq!(opened.view(0), whole);

    // Dragging zooms to the range.
    let [from, to] = [400, 700].map(|tick| opened.point(0, tick, peak.bytes / 2));
    opened.page.drag(from, to);
    let dragged = opened.view(0);
    assert!(
        dragged.first.abs_diff(400) < 8 && dragged.last.abs_diff(700) < 8,
        "{dragged:?}"
    );

    // A double click shows everything again, and pins nothing.
    opened.page.click(from, 2);
    assert_eq!(opened.view(0), whole);
    assert_eq!(opened.ask::<usize>(0, "moment()"), peak.tick);

    // The buttons.
    opened.page.click_on("[data-testid=zoom-in]");
    let half = opened.view(0);
    assert!(half.ticks() < ticks, "{half:?}");
    opened.page.click_on("[data-testid=zoom-out]");
    assert_eq!(opened.view(0), whole);
    opened.page.click_on("[data-testid=zoom-in]");
    opened.page.click_on("[data-testid=zoom-reset]");
    assert_eq!(opened.view(0), whole);

    // A click on the overview moves its place to the middle.
    opened.page.click_on("[data-testid=zoom-in]");
    opened.page.click_on("[data-testid=zoom-in]");
    let little: Point = opened.page.evaluate(
        "(() => {
            const overview = document.querySelector('[data-testid=overview]');
            const { left, top, width, height } = overview.getBoundingClientRect();
            return { x: left + 78 + (width - 90) * 0.75, y: top + height / 2 };
        })()",
    );
    opened.page.click((little.x, little.y), 1);
    let View { first, last, .. } = opened.view(0);
    let middle = snapshot.times[first].midpoint(snapshot.times[last]);
    let all = snapshot.times[ticks - 1];
    assert!(
        (middle as f64 / all as f64 - 0.75).abs() < 0.02,
        "{middle} of {all}"
    );
    assert_eq!(opened.page.problems(), Vec::<String>::new());
}

fn zoomed_in_every_step_has_its_name() {
    let snapshot = Training::release().snapshot();
    let mut opened = open(std::slice::from_ref(&snapshot));
    let mut steps = snapshot.phases.iter().filter_map(|phase| match phase.kind {
        PhaseKind::Step(parameter) => Some((*phase, parameter)),
        _ => None,
    });
    let (step, parameter) = steps.nth(40).unwrap();
    opened.zoom_to(step.from + 3);
    let (x, _) = opened.point(0, step.from + 3, 0);
    let top: f64 = opened
        .page
        .evaluate("document.querySelector('[data-testid=plot]').getBoundingClientRect().top");
    opened.page.hover((x, top + 28.0));
    let path = &snapshot.parameters[parameter].path;
    assert_eq!(opened.fact("name"), format!("Optimizer's step of {path}"));
    opened.page.hover((x, top + 10.0));
    assert_eq!(
        opened.fact("name"),
        format!("Backward of step {}", step.iteration + 1)
    );
    // And a click shows the whole step.
    opened.page.click((x, top + 28.0), 1);
    let View { first, last, .. } = opened.view(0);
    assert_eq!((first, last + 1), (step.from, step.until));
}

fn both_axes_show_the_same_ticks() {
    let snapshot = Training::plain().snapshot();
    let mut opened = open(std::slice::from_ref(&snapshot));
    opened.zoom_to(700);
    let events = opened.view(0);
    opened.page.click_on("[value=time]");
    let time = opened.view(0);
    assert!(
        time.first.abs_diff(events.first) <= 1 && time.last.abs_diff(events.last) <= 1,
        "{events:?}, {time:?}"
    );
    // Twice as late is twice as far to the right.
    let [left, middle, right] = [time.first, 700, time.last]
        .map(|tick| opened.ask::<Point>(0, &format!("point({tick}, 0)")).x);
    let at = |tick: usize| snapshot.times[tick].midpoint(snapshot.times[tick + 1]) as f64;
    let share = (at(700) - at(time.first)) / (at(time.last) - at(time.first));
    assert!(((middle - left) / (right - left) - share).abs() < 0.01);
    opened.page.click_on("[data-testid=zoom-reset]");
    opened.show_events();
    // All ticks are equally wide, whatever their times are.
    let ticks = snapshot.times.len();
    let share = |tick: usize| tick as f64 / (ticks - 1) as f64;
    let late = |tick: usize| snapshot.times[tick] as f64 / snapshot.times[ticks - 1] as f64;
    let odd = |tick: usize| ((share(tick) - late(tick)).abs() * 1e6) as u64;
    let tick = (0..ticks).max_by_key(|tick| odd(*tick)).unwrap();
    assert!(odd(tick) > 20_000, "{}", odd(tick));
    let [left, middle, right] = [0, tick, ticks - 1].map(|tick| opened.point(0, tick, 0).0);
    assert!(((middle - left) / (right - left) - share(tick)).abs() < 0.01);
}
