//! Groups of parameters, by their paths in a model.

/// The normalisation layers of Burn, and its embedding: as Burn names a struct to its visitors.
const NOT_DECAYED: [&str; 6] = [
    "Struct:BatchNorm",
    "Struct:Embedding",
    "Struct:GroupNorm",
    "Struct:InstanceNorm",
    "Struct:LayerNorm",
    "Struct:RmsNorm",
];

/// Number of similar paths an error lists.
const NEAR: usize = 3;

/// Whether a parameter is usually trained without weight decay: a vector or scalar, a bias, or a
/// parameter of a normalisation layer or an embedding. `container` is Burn's `container_type` of
/// the innermost struct around it.
pub fn is_not_decayed(rank: usize, path: &str, container: &str) -> bool {
    rank <= 1 || path.ends_with("bias") || NOT_DECAYED.contains(&container)
}

/// The paths that are most similar to the wanted ones.
pub fn nearest(wanted: &[&str], paths: &[String]) -> Vec<String> {
    let likeness = |path: &String| {
        let parts = path.split('.').chain([path.as_str()]);
        let pairs = parts.flat_map(|part| wanted.iter().map(move |wanted| (part, wanted)));
        let likeness = pairs.map(|(part, wanted)| strsim::jaro_winkler(part, wanted));
        likeness.fold(0.0, f64::max)
    };
    let mut near: Vec<_> = paths.iter().map(|path| (likeness(path), path)).collect();
    near.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    near.into_iter()
        .take(NEAR)
        .map(|(_, path)| path.clone())
        .collect()
}
