//! The peak, and the part of the recording in view.

use crate::chromium::Modifier;
use crate::synthetic::{Sampled, Training};
use crate::tests;
use crate::visit::{Point, Test, View, bytes_text, open, open_one, peak};
use lean_timeline::Snapshot;
use lean_timeline::snapshot::PhaseKind;

pub(crate) const TESTS: &[Test] = tests![
    the_peak_is_where_the_file_says,
    zooming_keeps_what_is_under_the_cursor,
    zoomed_in_every_step_has_its_name,
    both_axes_show_the_same_ticks
];

fn the_peak_is_where_the_file_says() {
    for sampled in [Sampled::Everywhere, Sampled::AtMarks, Sampled::Nowhere] {
        let trainings = [Training::plain(), Training::release()];
        check_peaks(&trainings.map(|training| training.sampled(sampled).snapshot()));
    }
    // An operation has a workspace that is larger than the largest total of the holders.
    let mut snapshot = Training::plain().snapshot();
    snapshot.samples[300].peak = 2 * peak(&snapshot).bytes;
    check_peaks(&[snapshot]);
}

fn check_peaks(snapshots: &[Snapshot]) {
    let mut opened = open(snapshots);
    for (panel, snapshot) in snapshots.iter().enumerate() {
        let context = format!("{}, {} samples", snapshot.title, snapshot.samples.len());
        let peak = peak(snapshot);
        assert_eq!(
            opened.ask::<usize>(panel, "peak.tick"),
            peak.tick,
            "{context}"
        );
        assert_eq!(
            opened.ask::<u64>(panel, "peak.bytes"),
            peak.bytes,
            "{context}"
        );
        let mut text = |part: &str| {
            opened
                .page
                .text(&format!("[data-testid=panel-{panel}] {part}"))
        };
        let bytes = bytes_text(peak.bytes);
        assert_eq!(text("[data-testid=peak]"), format!("Peak {bytes}"));
        let place = peak.place.unwrap().name(snapshot);
        let line = text("[data-role=where]");
        assert!(
            line.starts_with(&format!("in {place}, ")),
            "{context}: {line}"
        );

        for axis in ["time", "events"] {
            opened.page.click_on(&format!("[value={axis}]"));
            opened.page.rest();
            let (x, y) = opened.point(panel, peak.tick, peak.bytes);
            let highest = opened.highest(panel, None);
            let is_near = (highest.y - y).abs() <= 1.5;
            assert!(is_near, "{context}: {} is not {y}", highest.y);
            // Of equally high columns the first: the peak is there or in one to the right.
            assert!(highest.x <= x + 1.5, "{context}: {} is not {x}", highest.x);
            let column = opened.highest(panel, Some(x)).y;
            assert!((column - y).abs() <= 1.5, "{context}: {column} is not {y}");
        }
    }
}

fn zooming_keeps_what_is_under_the_cursor() {
    let snapshot = Training::plain().snapshot();
    let peak = peak(&snapshot);
    let ticks = snapshot.times.len();
    let mut opened = open_one(&snapshot);
    let whole = opened.view(0);
    assert_eq!((whole.first, whole.last), (0, ticks - 1));

    // The wheel, about the cursor.
    let at = opened.point(0, peak.tick, peak.bytes / 2);
    opened.page.wheel(at, 6);
    let near = opened.view(0);
    near.is_near(peak.tick, ticks / 3);
    let after = opened.point(0, peak.tick, peak.bytes / 2);
    assert!((after.0 - at.0).abs() < 1.0, "{} is not {}", after.0, at.0);
    opened.page.wheel(at, -12);
    assert_eq!(opened.view(0), whole);

    // With Shift it moves along, with Alt it zooms in bytes.
    opened.page.wheel(at, 6);
    let near = opened.view(0);
    opened.page.wheel_with(Modifier::Shift, at, 1);
    let along = opened.view(0);
    let is_moved = along.first < near.first && along.last < near.last;
    assert!(is_moved, "{near:?}, {along:?}");
    opened.page.wheel_with(Modifier::Alt, at, 3);
    let View { low, high, .. } = opened.view(0);
    assert!(low > 0.0 && high - low < whole.high / 1.5, "{low} {high}");
    let half = peak.bytes as f64 / 2.0;
    assert!(low < half && half < high, "{low} {high}");
    opened.page.click_on("[data-testid=zoom-reset]");
    assert_eq!(opened.view(0), whole);

    // Dragging zooms to the range.
    let [from, to] = [400, 700].map(|tick| opened.point(0, tick, peak.bytes / 2));
    opened.page.drag(from, to);
    opened.view(0).is_about([400, 700], 7);

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

    opened.is_fine();
}

fn zoomed_in_every_step_has_its_name() {
    let snapshot = Training::release().snapshot();
    let mut opened = open_one(&snapshot);
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
    let mut opened = open_one(&snapshot);
    opened.zoom_to(700);
    let events = opened.view(0);
    opened.page.click_on("[value=time]");
    let time = opened.view(0);
    time.is_about([events.first, events.last], 1);
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
