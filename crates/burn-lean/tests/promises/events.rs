//! The event of each step.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::harness::prelude::*;

/// The fields of each event that is ours.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<Fields>>>);

#[derive(Default)]
struct Fields(Vec<(&'static str, String)>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "burn_lean::step"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Alone: `tracing` keeps for all threads whether somebody listens.
#[test]
fn one_for_each_step() {
    alone(|| {
        let listener = Listener::default();
        let mut optim = adamw().with_gradient_release().with_grad_norm();
        let model = tracing::subscriber::with_default(listener.clone(), || {
            let model = small();
            let model = optim.backward(LR, model.loss(0), model);
            optim.accumulate(model.loss(1), &model);
            optim.backward(LR, model.loss(2), model)
        });
        let norm = optim.last_step().unwrap().grad_norm().unwrap();
        let events = listener.0.lock().unwrap();
        assert_eq!(events.len(), 2);
        let field = |name| {
            let found = events[1].0.iter().find(|(field, _)| *field == name);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(field("released"), Some("5"));
        assert_eq!(field("in_place"), Some("5"));
        assert_eq!(field("skipped"), Some("0"));
        assert_eq!(field("grad_norm"), Some(&format!("{norm:?}")[..]));
        assert_eq!(field("loss_scale"), None);
        drop(model);
    });
}
