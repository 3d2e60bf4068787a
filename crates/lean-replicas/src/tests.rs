use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{thread, time::Duration};

use crate::{
    Alone, CommunicationError, Communicator, Exchange, Known, ModelWalk, ReplicaError, Replicas,
    Threads,
};

#[test]
fn who_does_not_come_is_not_awaited_for_ever() {
    let rank = |size: usize| {
        Threads::run(size, |replicas| {
            let hurried = replicas.clone().with_timeout(Duration::from_millis(100));
            let waited = match replicas.rank() {
                0 => hurried.meet("a question"),
                _ => {
                    thread::sleep(Duration::from_millis(600));
                    replicas.meet("a question")
                }
            };
            waited.err()
        })
    };
    let found = rank(2);
    assert!(matches!(
        found[0],
        Some(ReplicaError::Timeout { rank: 0, .. })
    ));
    assert_eq!(found[1], None);
    let text = found[0].as_ref().unwrap().to_string();
    assert!(
        text.starts_with("rank 0 of 2 has waited 100ms for the others at a question"),
        "{text}"
    );
}

#[test]
fn who_is_not_there_is_not_awaited_for_ever() {
    let joined = Replicas::new_within(Duration::from_millis(50), || {
        thread::sleep(Duration::from_millis(600));
        Ok(Alone)
    });
    let error = joined.map(|_| ()).unwrap_err();
    let waited = Duration::from_millis(50);
    assert_eq!(error, ReplicaError::NotJoined { waited });
}

#[test]
fn what_all_have_brought_is_taken_before_an_end() {
    for _ in 0..20 {
        let mut threads = Threads::new(2);
        let (second, first) = (threads.pop().unwrap(), threads.pop().unwrap());
        thread::scope(|scope| {
            let taken = scope.spawn(move || second.all_gather(&[2]).unwrap());
            // It waits by then, and takes a while to wake up.
            thread::sleep(Duration::from_millis(2));
            assert_eq!(first.all_gather(&[1]).unwrap(), [1, 2]);
            first.abort();
            assert_eq!(taken.join().unwrap(), [1, 2]);
        });
        assert!(first_after_end(Threads::new(2)).is_err());
    }
}

/// The outcome of a meeting that has ended.
fn first_after_end(threads: Vec<Threads>) -> Result<Vec<u8>, CommunicationError> {
    threads[1].abort();
    threads[0].all_gather(&[1])
}

#[test]
fn flags_of_the_first_and_numbers_of_all() {
    let found = Threads::run(3, |replicas| {
        let rank = replicas.rank();
        (
            replicas.first_says("first", rank == 0).unwrap(),
            replicas.first_says("others", rank != 0).unwrap(),
            replicas.numbers("ranks", rank as f64).unwrap(),
        )
    });
    let expected = (true, false, vec![0.0, 1.0, 2.0]);
    assert_eq!(found, [(); 3].map(|()| expected.clone()));
}

#[test]
fn the_first_text_is_that_of_all() {
    let found = Threads::run(3, |replicas| {
        let rank = replicas.rank();
        let text = (rank > 0).then(|| "x".repeat(rank));
        (
            replicas.anybody_says("some", text).unwrap(),
            replicas.anybody_says("none", None).unwrap(),
            replicas
                .anybody_says("empty", (rank == 2).then(String::new))
                .unwrap(),
        )
    });
    let expected = (Some("x".to_string()), None, Some(String::new()));
    assert_eq!(found, [(); 3].map(|()| expected.clone()));
}

#[test]
fn another_setting_is_named() {
    let found = Threads::run(2, |replicas| {
        let seed = 42 + replicas.rank();
        replicas.same_settings([("optimizer", "adamw".into()), ("seed", seed.to_string())])
    });
    let text = found[0].as_ref().unwrap_err().to_string();
    let differences = "rank 0: the setting seed: 42; rank 1: the setting seed: 43";
    assert!(text.ends_with(differences), "{text}");
    let found = Threads::run(2, |replicas| replicas.same_settings([("seed", 42)]));
    assert_eq!(found, [Ok(()), Ok(())]);
}

fn known(id: u64, path: &str) -> Known {
    Known {
        id,
        path: path.into(),
        size: 4,
        is_trained: true,
    }
}

#[test]
fn rates_are_named_where_they_change() {
    let exchange = Exchange::new(Replicas::new(|| Ok(Alone)).unwrap());
    exchange.know(vec![known(9, "a"), known(3, "b"), known(5, "c")]);
    assert_eq!(exchange.rates(|_, _| "1e-3".into()), "1e-3");
    let rates = exchange.rates(|id, _| if id == 3 { "1e-4" } else { "1e-3" }.into());
    assert_eq!(rates, "1e-3, 1e-4 from b, 1e-3 from c");
}

/// A teacher beside its student.
#[test]
fn a_frozen_copy_does_not_take_the_place_of_what_is_trained() {
    let found = Threads::run(2, |replicas| {
        let exchange = Exchange::new(replicas);
        let teacher = Known {
            is_trained: false,
            ..known(9, "teacher")
        };
        exchange.know(vec![teacher, known(9, "student")]);
        let said = exchange.describe("gradient", 9, "").unwrap();
        assert!(said.contains("student"), "{said}");
        exchange.order()
    });
    assert_eq!(found, [Some(vec![9]), Some(vec![9])]);
}

/// A new owner would not have the states of the steps before.
#[test]
fn a_parameter_keeps_its_owner() {
    Threads::run(2, |replicas| {
        let exchange = Exchange::new(replicas).with_sharded_optimizer();
        let larger = |is_trained| Known {
            size: 8,
            is_trained,
            ..known(3, "b")
        };
        exchange.know(vec![known(9, "a"), larger(false)]);
        let owner = exchange.owner(9).unwrap();
        exchange.know(vec![known(9, "a"), larger(true)]);
        assert_eq!(exchange.owner(9).unwrap(), owner);
    });
}

#[test]
fn gradients_are_reduced_in_the_order_of_the_first_replica() {
    let found = Threads::run(2, |replicas| {
        let rank = replicas.rank();
        let exchange = Exchange::new(replicas);
        let frozen = Known {
            is_trained: false,
            ..known(4, "frozen")
        };
        exchange.know(vec![known(9, "a"), known(3, "b"), frozen, known(5, "c")]);
        let mut orders = vec![exchange.order().unwrap()];
        for completed in [
            [vec![5, 9, 3], vec![3, 5, 9]],
            [vec![5, 9, 3], vec![5, 9, 3]],
        ] {
            exchange.completed(completed[rank].clone());
            exchange.end_step("1e-3").unwrap();
            orders.push(exchange.order().unwrap());
        }
        orders
    });
    let orders = vec![vec![5, 3, 9], vec![5, 9, 3], vec![5, 9, 3]];
    assert_eq!(found, [orders.clone(), orders]);
}

/// Of two models in turns, and of parts of a model.
#[test]
fn the_order_of_others_stays() {
    let found = Threads::run(2, |replicas| {
        let exchange = Exchange::new(replicas);
        exchange.know(vec![known(9, "a"), known(3, "b"), known(5, "c")]);
        let mut orders = Vec::new();
        for completed in [vec![5, 9, 3], vec![2, 1], vec![9, 3], vec![2, 1]] {
            exchange.know(vec![known(1, "a"), known(2, "b")]);
            orders.push(exchange.order().unwrap());
            exchange.completed(completed);
            exchange.end_step("1e-3").unwrap();
        }
        orders
    });
    let orders = vec![
        vec![2, 1, 5, 3, 9],
        vec![5, 9, 3, 2, 1],
        vec![2, 1, 5, 9, 3],
        // What has had no gradient in the last step keeps none waiting.
        vec![9, 3, 2, 1, 5],
    ];
    assert_eq!(found, [orders.clone(), orders]);
}

/// Replicas have ids of their own for what is not trained.
#[test]
fn two_models_have_one_order_on_all_replicas() {
    let found = Threads::run(2, |replicas| {
        let statistic = Known {
            is_trained: false,
            ..known([2, 8][replicas.rank()], "mean")
        };
        let exchange = Exchange::new(replicas);
        exchange.know(vec![known(7, "a"), statistic]);
        exchange.know(vec![known(6, "a"), known(5, "b")]);
        let owners = exchange.owners().into_iter();
        owners.map(|(_, path, _)| path).collect::<Vec<_>>()
    });
    assert_eq!(
        found,
        [(); 2].map(|()| ["a", "mean", "a", "b"].map(String::from).to_vec())
    );
}

#[test]
fn bytes_of_one_replica_are_at_all() {
    let found = Threads::run(3, |replicas| {
        let rank = replicas.rank();
        let exchange = Exchange::new(replicas);
        let bytes = vec![rank as u8; 3 * rank];
        exchange.from_rank(2, "bytes", bytes).unwrap()
    });
    assert_eq!(found, [(); 3].map(|()| vec![2; 6]));
}

/// As frozen weights after each epoch.
#[test]
fn a_parameter_that_all_have_is_not_sent() {
    struct Counted(Threads, Arc<AtomicUsize>);

    impl Communicator for Counted {
        fn rank(&self) -> usize {
            self.0.rank()
        }

        fn size(&self) -> usize {
            self.0.size()
        }

        fn all_gather(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
            self.0.all_gather(bytes)
        }

        fn gather(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
            self.0.gather(root, bytes)
        }

        fn all_to_all(&self, bytes: &[u8]) -> Result<Vec<u8>, CommunicationError> {
            self.0.all_to_all(bytes)
        }

        fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError> {
            self.1.fetch_max(bytes.len(), Ordering::Relaxed);
            self.0.broadcast(root, bytes)
        }

        fn abort(&self) {
            self.0.abort();
        }
    }

    for (of_second, most) in [(vec![1; 100], 8), (vec![2; 100], 100)] {
        let sent = Arc::new(AtomicUsize::new(0));
        let brought = Threads::new(2).into_iter().zip([vec![1; 100], of_second]);
        thread::scope(|scope| {
            for (thread, bytes) in brought {
                let counted = Counted(thread, sent.clone());
                scope.spawn(move || {
                    let replicas = Replicas::new(move || Ok(counted)).unwrap();
                    let mut walk = ModelWalk::new(&replicas);
                    let received = walk.receive(7, false, "[100] U8", bytes);
                    assert_eq!(received, Some((7, vec![1; 100])));
                    walk.finish().unwrap();
                });
            }
        });
        assert_eq!(sent.load(Ordering::Relaxed), most);
    }
}
