//! The page as a whole: it opens, takes two snapshots, and a million events.

use crate::synthetic::Training;
use crate::tests;
use crate::visit::{Opened, Test, View, bytes_text, open, open_one, peak, pile};
use lean_timeline::Snapshot;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = tests![
    opens_without_an_error_or_a_request,
    two_snapshots_share_their_scale,
    odd_snapshots_open,
    a_million_events_are_no_burden
];

fn opens_without_an_error_or_a_request() {
    let mut opened = open(&[Training::plain().snapshot(), Training::release().snapshot()]);
    opened.is_fine();
    assert_eq!(opened.page.requests(), [opened.url.clone()]);
    let titles = [Training::plain(), Training::release()].map(|training| training.title);
    assert_eq!(opened.page.text("title"), titles.join(" | "));
    assert_eq!(opened.page.text("[data-testid=title]"), titles[0]);

    // A request would fail: the page's own policy forbids it.
    let directive: String = opened.page.evaluate(
        "new Promise((done) => {
            const tell = (event) => done(event.effectiveDirective);
            document.addEventListener('securitypolicyviolation', tell);
            fetch('http://localhost:9/').catch(() => {});
            setTimeout(() => done('nothing held it back'), 5000);
        })",
    );
    assert_eq!(directive, "connect-src");
}

fn two_snapshots_share_their_scale() {
    let snapshots = [Training::plain().snapshot(), Training::release().snapshot()];
    let peaks = snapshots.each_ref().map(peak);
    let mut opened = open(&snapshots);
    for (panel, peak) in peaks.iter().enumerate() {
        assert_eq!(opened.ask::<usize>(panel, "peak.tick"), peak.tick);
        assert_eq!(opened.ask::<u64>(panel, "peak.bytes"), peak.bytes);
        let View { first, last, .. } = opened.view(panel);
        assert_eq!((first, last + 1), (0, snapshots[panel].times.len()));
    }
    // At the same height, and the second to the right of the first.
    let [first, second] = [0, 1].map(|panel| opened.point(panel, 0, peaks[1].bytes));
    assert_eq!(first.1, second.1);
    assert!(first.0 + 600.0 < second.0);
    let less = peaks[0].bytes - peaks[1].bytes;
    let share = 100.0 * less as f64 / peaks[0].bytes as f64;
    let change = "[data-testid=panel-1] [data-testid=change]";
    let less = format!("{} less (−{share:.1} %)", bytes_text(less));
    assert_eq!(opened.page.text(change), less);
    let is_hidden = "document.querySelector('[data-testid=change]').hidden";
    assert!(opened.page.evaluate::<bool>(is_hidden));

    // Each panel has its own view of its own x axis.
    let before = opened.view(0);
    let at = opened.point(1, peaks[1].tick, peaks[1].bytes / 2);
    opened.page.wheel(at, 4);
    assert_eq!(opened.view(0), before);
    assert!(opened.view(1).ticks() < snapshots[1].times.len() / 2);
    opened.page.hover(at);
    assert!(opened.ask::<Option<usize>>(0, "lit()").is_none());
    let tick: usize = opened.ask(1, "cursor()");
    let lit: usize = opened.ask(1, "lit()");
    let holder = snapshots[1].holders[lit];
    assert!(holder.from <= tick && tick < holder.until);
    opened.is_fine();
}

fn odd_snapshots_open() {
    let mut opened = open(&[Snapshot::default()]);
    let peak_text = opened.page.text("[data-testid=peak]");
    assert_eq!(peak_text, "Nothing was recorded");
    opened.page.hover((500.0, 400.0));
    opened.page.wheel((500.0, 400.0), 2);
    opened.page.click((500.0, 400.0), 1);
    opened.is_fine();

    let mut snapshot = Training::plain().snapshot();
    snapshot.title = "</script><b>bold</b> {{style}}".into();
    snapshot.warnings = vec!["<i>no</i> storage was known".into()];
    snapshot.parameters[0].path = "<img src=x onerror=alert(1)>".into();
    snapshot.phases.clear();
    snapshot.samples.clear();
    let mut opened = open_one(&snapshot);
    assert_eq!(opened.page.text("[data-testid=title]"), snapshot.title);
    assert_eq!(opened.page.text("title"), snapshot.title);
    let warning = opened.page.text("[data-testid=warnings] li");
    assert_eq!(warning, snapshot.warnings[0]);
    assert_eq!(opened.ask::<u64>(0, "peak.bytes"), peak(&snapshot).bytes);
    let markup = "document.querySelectorAll('b b, li i, img').length";
    assert_eq!(opened.page.evaluate::<usize>(markup), 0);
    opened.is_fine();
}

fn a_million_events_are_no_burden() {
    let snapshot = Training::vast().snapshot();
    let peak = peak(&snapshot);
    assert!(snapshot.times.len() >= 1_000_000 && snapshot.parameters.len() == 5_000);
    let mut opened = open_one(&snapshot);
    let mut report = vec![format!("opened in {} ms", opened.page.opened().as_millis())];
    assert!(opened.page.opened() < Duration::from_secs(60));
    assert_eq!(opened.ask::<usize>(0, "peak.tick"), peak.tick);

    let mut took = |opened: &mut Opened, what: &str, field: &str| {
        let milliseconds: f64 = opened.ask(0, &format!("took.{field}"));
        report.push(format!("{what} {milliseconds:.1} ms"));
        assert!(milliseconds < 5_000.0, "{what}: {milliseconds} ms");
    };
    took(&mut opened, "all drawn in", "draw");
    for share in [0.95, 0.5, 0.1] {
        let at = opened.point(0, peak.tick, (peak.bytes as f64 * share) as u64);
        opened.page.hover(at);
        let tick: usize = opened.ask(0, "cursor()");
        let lit: usize = opened.ask(0, "lit()");
        let holder = snapshot.holders[lit];
        assert!(holder.from <= tick && tick < holder.until);
        took(&mut opened, "hovered in", "hover");
    }
    let at = opened.point(0, peak.tick, peak.bytes / 2);
    opened.page.wheel(at, 1);
    took(&mut opened, "zoomed in", "draw");
    opened.page.wheel(at, 30);
    took(&mut opened, "30 times in", "draw");
    // Zoomed in until single events are visible, with the right names.
    opened.view(0).is_near(peak.tick, 2_000);
    let tick: usize = opened.ask(0, &format!("tickAt({})", at.0));
    let middle = peak.bytes / 2;
    let mut top = 0;
    let layer = pile(&snapshot, tick).into_iter().find(|layer| {
        top += layer.bytes;
        middle < top
    });
    opened.page.hover(at);
    // Many holders share a pixel here, and the cursor is on one of them.
    let lit: usize = opened.ask(0, "lit()");
    assert_eq!(snapshot.holders[lit].category, layer.unwrap().category);
    opened.is_fine();
    println!("a million events: {}", report.join(", "));
}
