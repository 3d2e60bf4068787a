//! Holders: under the cursor, in the list, in the legend.

use crate::chromium::Modifier;
use crate::synthetic::Training;
use crate::tests;
use crate::visit::{Layer, Opened, Test, View, bytes_text, category_text, open_one, peak, pile};
use lean_timeline::Snapshot;
use lean_timeline::analysis::{Place, Totals, moments};
use lean_timeline::snapshot::Category;
use serde_json::Value;
use std::collections::BTreeSet;

pub(crate) const TESTS: &[Test] = tests![
    hovering_names_the_holder,
    a_line_parts_one_holder_from_the_next,
    a_holder_is_lit_over_its_whole_life,
    categories_are_hidden_and_shown,
    the_list_is_of_the_chosen_moment
];

fn hovering_names_the_holder() {
    // A large batch, so that activations are large enough to be hovered.
    let training = Training {
        tokens: 1_000,
        ..Training::plain()
    };
    let snapshot = training.snapshot();
    let peak = peak(&snapshot);
    let totals = Totals::of(&snapshot);
    let mut opened = open_one(&snapshot);
    let workspace = moments(&snapshot, &totals)
        .filter(|moment| moment.sample.peak > moment.sample.in_use && moment.tick > 300)
        .max_by_key(|moment| moment.workspace)
        .unwrap();
    // At the peak, in the middle of a forward pass, and where an operation works.
    let forward = snapshot.phases[0].from + 20;
    let mut seen = BTreeSet::new();
    let mut count = 0;
    let mut workspaces = 0;
    for around in [peak.tick, forward, workspace.tick] {
        opened.page.click_on("[data-testid=zoom-reset]");
        opened.zoom_to(around);
        if around == workspace.tick {
            // It is only a few pixels high, at the top of the stack.
            let top = pile(&snapshot, around)
                .iter()
                .map(|layer| layer.bytes)
                .sum();
            let at = opened.point(0, around, top);
            opened.page.wheel_with(Modifier::Alt, at, 8);
        }
        let View {
            first,
            last,
            low,
            high,
        } = opened.view(0);
        assert!(last - first < 200, "{first}..={last}");
        // A lower one may share all its pixels.
        let least = (high - low) / 160.0;
        for tick in [around, (first + around) / 2] {
            let mut top = 0;
            for layer in pile(&snapshot, tick) {
                let middle = top + layer.bytes / 2;
                top += layer.bytes;
                let is_seen = low < middle as f64 && (middle as f64) < high;
                if !is_seen || (layer.bytes as f64) < least {
                    continue;
                }
                let at = opened.point(0, tick, middle);
                opened.page.hover(at);
                check_tooltip(&mut opened, &snapshot, tick, layer);
                seen.insert(layer.category);
                workspaces += usize::from(layer.holder.is_none());
                count += 1;
            }
            // Above the stack there is no holder.
            let at = opened.point(0, tick, top + least as u64);
            opened.page.hover(at);
            let is_hidden = "document.getElementById('tooltip').hidden";
            assert!(opened.page.evaluate::<bool>(is_hidden));
        }
    }
    assert!(count > 40, "only {count} holders are large enough");
    assert_eq!(seen, Category::ALL.into_iter().collect());
    assert!(workspaces > 0);
}

fn check_tooltip(opened: &mut Opened, snapshot: &Snapshot, tick: usize, layer: Layer) {
    let operation = layer
        .operation
        .map(|number| snapshot.operations[number].clone());
    let operation = operation.unwrap_or_default();
    let holder = layer.holder.map(|number| snapshot.holders[number]);
    let context = format!("tick {tick}, {layer:?}");
    let name = match holder {
        Some(holder) => holder.parameter.map_or(operation.clone(), |number| {
            snapshot.parameters[number].path.clone()
        }),
        None => {
            // As in the peak of the analysis: the parameter of the operation's output.
            let made = snapshot
                .holders
                .iter()
                .find(|holder| holder.from == tick && Some(holder.operation) == layer.operation);
            let path = |number: usize| format!(", for {}", snapshot.parameters[number].path);
            let purpose = made.and_then(|holder| holder.parameter).map(path);
            format!("workspace of {operation}{}", purpose.unwrap_or_default())
        }
    };
    assert_eq!(opened.fact("name"), name, "{context}");
    assert_eq!(opened.fact("bytes"), bytes_text(layer.bytes), "{context}");
    assert_eq!(
        opened.fact("category"),
        category_text(layer.category),
        "{context}"
    );
    let from = holder.map_or(tick, |holder| holder.from);
    let made_in = Place::of(snapshot, from).map(|place| place.name(snapshot));
    assert_eq!(
        opened.fact("made-in"),
        made_in.unwrap_or("between steps".into()),
        "{context}"
    );
    let held = opened.fact("held").replace(',', "");
    let Some(holder) = holder else {
        return assert_eq!(held, format!("within event {tick}"), "{context}");
    };
    if holder.parameter.is_some() {
        assert_eq!(opened.fact("made-by"), operation, "{context}");
    }
    let until = match holder.until {
        until if until < snapshot.times.len() => until.to_string(),
        _ => "the end".into(),
    };
    let events = format!("events {} to {until}", holder.from);
    assert!(held.starts_with(&events), "{context}: {held}");
    assert_eq!(
        opened.ask::<Option<usize>>(0, "lit()"),
        layer.holder,
        "{context}"
    );
}

fn a_holder_is_lit_over_its_whole_life() {
    let snapshot = Training::plain().snapshot();
    let tick = peak(&snapshot).tick;
    let mut opened = open_one(&snapshot);
    opened.show_events();
    // The largest gradient: the categories below it change.
    check_life(&mut opened, &snapshot, Category::Gradients, tick, tick - 60);
    // The largest weight: those below it are released first, so that it moves down.
    check_life(&mut opened, &snapshot, Category::Parameters, 300, 340);
}

fn check_life(
    opened: &mut Opened,
    snapshot: &Snapshot,
    category: Category,
    tick: usize,
    calm: usize,
) {
    let number = (0..snapshot.holders.len())
        .filter(|number| {
            let holder = snapshot.holders[*number];
            holder.category == category && holder.from <= tick && tick < holder.until
        })
        .max_by_key(|number| snapshot.holders[*number].bytes)
        .unwrap();
    let holder = snapshot.holders[number];
    let bottom = |tick: usize| {
        let pile = pile(snapshot, tick);
        let below = pile.iter().take_while(|layer| layer.holder != Some(number));
        below.map(|layer| layer.bytes).sum::<u64>()
    };
    let at = opened.point(0, tick, bottom(tick) + holder.bytes / 2);
    opened.page.hover(at);
    assert_eq!(opened.ask::<Option<usize>>(0, "lit()"), Some(number));
    // Not at one of its ends, nor at the cursor.
    for tick in [holder.from + 20, tick + 40, holder.until - 20] {
        let (x, _) = opened.point(0, tick, 0);
        let tick: usize = opened.ask(0, &format!("tickAt({x})"));
        let bottom = bottom(tick);
        assert!(is_lit(opened, tick, bottom + holder.bytes / 2), "at {tick}");
    }
    // Not above it nor below.
    for height in [bottom(calm) + 2 * holder.bytes, bottom(calm) - holder.bytes] {
        assert!(!is_lit(opened, calm, height), "at {calm}, {height}");
    }
    let most = peak(snapshot).bytes;
    for tick in [holder.from.checked_sub(20), Some(holder.until + 20)] {
        let Some(tick) = tick else { continue };
        let is_anywhere = (0..60).any(|part| is_lit(opened, tick, part * most / 60));
        assert!(!is_anywhere, "at {tick}, outside of {holder:?}");
    }
}

/// Whether the overlay has a pixel there.
fn is_lit(opened: &mut Opened, tick: usize, bytes: u64) -> bool {
    let [.., alpha] = opened.colour("overlay", tick, bytes, 0);
    alpha > 0
}

fn a_line_parts_one_holder_from_the_next() {
    let snapshot = Training::plain().snapshot();
    let tick = peak(&snapshot).tick;
    let mut opened = open_one(&snapshot);
    opened.zoom_to(tick);
    let at = opened.point(0, tick, peak(&snapshot).bytes / 2);
    opened.page.wheel_with(Modifier::Alt, at, 6);
    opened.page.hover((10.0, 10.0));
    let View { low, high, .. } = opened.view(0);
    let least = (high - low) / 40.0;
    let mut top = 0;
    let mut below: Option<Layer> = None;
    let mut count = 0;
    for layer in pile(&snapshot, tick) {
        let bottom = top;
        top += layer.bytes;
        let is_large = layer.bytes as f64 >= least && low < bottom as f64 && (top as f64) < high;
        let Some(below) = below.replace(layer).filter(|_| is_large) else {
            continue;
        };
        if below.category != layer.category || (below.bytes as f64) < least {
            continue;
        }
        let mut colour = |bytes, rows| opened.colour("base", tick, bytes, rows);
        let upper = colour(bottom + layer.bytes / 2, 0);
        let lower = colour(bottom - below.bytes / 2, 0);
        let is_parted = (-2..=1).any(|rows| {
            let between = colour(bottom, rows);
            between != upper && between != lower
        });
        assert!(is_parted, "{below:?}, {layer:?}");
        count += 1;
    }
    assert!(count > 3, "only {count} are large enough");
}

fn categories_are_hidden_and_shown() {
    let snapshot = Training::plain().snapshot();
    let peak = peak(&snapshot);
    let totals = Totals::of(&snapshot);
    let mut opened = open_one(&snapshot);
    for category in Category::ALL {
        let key = serde_json::to_value(category).unwrap();
        let value = format!("[data-testid=value-{}]", key.as_str().unwrap());
        let bytes = bytes_text(peak.bytes_of(category));
        assert_eq!(opened.page.text(&value), bytes, "{category:?}");
    }
    // Under the cursor.
    opened.show_events();
    let at = opened.point(0, 500, 100_000);
    opened.page.hover(at);
    let tick: usize = opened.ask(0, "cursor()");
    assert!(tick.abs_diff(500) <= 1);
    let value = opened.page.text("[data-testid=value-gradients]");
    let gradients = totals.layer(Category::Gradients)[tick];
    assert_ne!(gradients, totals.layer(Category::Gradients)[peak.tick]);
    assert_eq!(value, bytes_text(gradients));

    // Without the weights, the category above them is at the bottom.
    let button = "[data-testid=category-parameters]";
    let whole = opened.view(0);
    opened.page.click_on(button);
    let pressed: String = opened
        .page
        .evaluate(&format!("document.querySelector('{button}').ariaPressed"));
    assert_eq!(pressed, "false");
    assert!(opened.view(0).high < whole.high);
    let at = opened.point(0, peak.tick, 1000);
    opened.page.hover(at);
    assert_eq!(opened.fact("category"), "optimizer state");
    opened.page.click_on(button);
    assert_eq!(opened.view(0), whole);
    let at = opened.point(0, peak.tick, 1000);
    opened.page.hover(at);
    assert_eq!(opened.fact("category"), "parameter");

    // With Shift, gradients alone: the highest pixel is at their largest total.
    opened.page.evaluate::<Value>(
        "document.querySelector('[data-testid=category-gradients]')
            .dispatchEvent(new MouseEvent('click', { bubbles: true, shiftKey: true }))",
    );
    opened.page.rest();
    let most = totals.most(&snapshot, Category::Gradients);
    let (_, y) = opened.point(0, most.tick, most.bytes);
    let highest = opened.highest(0, None);
    assert!((highest.y - y).abs() <= 1.5, "{} is not {y}", highest.y);
    opened.is_fine();
}

fn the_list_is_of_the_chosen_moment() {
    let snapshot = Training::plain().snapshot();
    let peak = peak(&snapshot);
    let mut opened = open_one(&snapshot);
    let sizes = "Array.from(
        document.querySelectorAll('[data-testid=holders] tbody td.size'),
        (cell) => cell.textContent)";
    let list = |what: &str, holders: usize, bytes| {
        format!("At the {what}: {holders} holders, {}", bytes_text(bytes))
    };
    let title = opened.page.text("[data-testid=list-title]");
    assert_eq!(title, list("peak", peak.pieces.len(), peak.bytes));
    let shown: Vec<String> = opened.page.evaluate(sizes);
    assert_eq!(shown.len(), 50);
    let largest = peak.pieces.iter().map(|piece| bytes_text(piece.bytes));
    assert_eq!(shown, largest.take(50).collect::<Vec<_>>());
    opened.page.click_on("[data-testid=more]");
    let shown: Vec<String> = opened.page.evaluate(sizes);
    assert_eq!(shown.len(), peak.pieces.len().min(250));

    // A click pins another tick.
    opened.show_events();
    let at = opened.point(0, 500, 1000);
    opened.page.click(at, 1);
    let tick: usize = opened.ask(0, "moment()");
    assert!(tick.abs_diff(500) <= 1);
    let alive = pile(&snapshot, tick);
    let bytes = alive.iter().map(|layer| layer.bytes).sum();
    let title = opened.page.text("[data-testid=list-title]");
    assert_eq!(title, list("pinned moment", alive.len(), bytes));

    // A row of the list highlights its holder in the plot.
    opened.page.evaluate::<Value>(
        "document.querySelector('[data-testid=holders] tbody tr')
            .dispatchEvent(new PointerEvent('pointerover', { bubbles: true }))",
    );
    let lit: usize = opened.ask(0, "lit()");
    assert_eq!(
        Some(snapshot.holders[lit].bytes),
        alive.iter().map(|layer| layer.bytes).max()
    );

    // Only the rows that match.
    opened.page.evaluate::<Value>(
        "(() => {
            const filter = document.querySelector('[data-testid=filter]');
            filter.value = 'Blocks.1.mlp';
            filter.dispatchEvent(new Event('input'));
        })()",
    );
    let rows: Vec<String> = opened.page.evaluate(
        "Array.from(
            document.querySelectorAll('[data-testid=holders] tbody td.for'),
            (cell) => cell.textContent)",
    );
    let wanted = alive.iter().filter(|layer| {
        let parameter = layer
            .holder
            .and_then(|number| snapshot.holders[number].parameter);
        parameter.is_some_and(|number| snapshot.parameters[number].path.starts_with("blocks.1.mlp"))
    });
    assert_eq!(rows.len(), wanted.count());
    assert!(!rows.is_empty());
    let are_wanted = rows.iter().all(|row| row.starts_with("blocks.1.mlp"));
    assert!(are_wanted, "{rows:?}");

    opened.page.click_on("[data-testid=to-peak]");
    assert_eq!(opened.ask::<usize>(0, "moment()"), peak.tick);
}
