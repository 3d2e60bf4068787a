//! One folder of images for each class: `folder/class/image.png`.

use super::{Dataset, ImageSize, Split, square_colour, square_grey};
use anyhow::{Context, Result, ensure};
use image::{ColorType, DynamicImage, ImageReader};
use std::fs;
use std::path::{Path, PathBuf};

/// Images of several sizes are resized to this one, unless `--image-size` names another.
const USUAL_SIZE: usize = 224;

pub(super) fn load(folder: &Path, size: ImageSize) -> Result<Dataset> {
    let classes: Vec<PathBuf> = sorted(folder)?.into_iter().filter(|p| p.is_dir()).collect();
    ensure!(
        classes.len() >= 2,
        "{} does not hold one folder of images for each of at least two classes",
        folder.display()
    );
    let mut files = Vec::new();
    for (label, class) in classes.iter().enumerate() {
        let images: Vec<PathBuf> = sorted(class)?.into_iter().filter(|f| is_image(f)).collect();
        ensure!(
            !images.is_empty(),
            "{} holds no .png or .jpg images",
            class.display()
        );
        files.extend(images.into_iter().map(|file| (file, label as u32)));
    }

    let mut natural = None;
    let mut grey = true;
    for (file, _) in &files {
        let image = read(file)?;
        grey &= is_grey(&image);
        let size = (image.width(), image.height());
        natural = match natural {
            None if size.0 == size.1 => Some(size.0 as usize),
            Some(known) if size == (known as u32, known as u32) => natural,
            _ => Some(USUAL_SIZE),
        };
    }
    let size = size.resolve(natural.unwrap_or(USUAL_SIZE).min(USUAL_SIZE))?;

    // Reads the files a second time: held in memory, images are large until they have been resized.
    let channels = if grey { 1 } else { 3 };
    let mut all = Split::default();
    for (file, label) in &files {
        let image = read(file)?;
        let pixels = if grey {
            square_grey(&image.into_luma8(), size)
        } else {
            square_colour(&image.into_rgb8(), size)
        };
        all.push(&pixels, *label);
    }
    Dataset::from_one(size, channels, classes.len(), &all)
        .with_context(|| folder.display().to_string())
}

fn read(file: &Path) -> Result<DynamicImage> {
    ImageReader::open(file)
        .and_then(ImageReader::with_guessed_format)
        .with_context(|| file.display().to_string())?
        .decode()
        .with_context(|| format!("cannot read the image {}", file.display()))
}

/// The entries of a folder without hidden files, sorted: the order must not depend on the file
/// system.
fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(folder)
        .and_then(|entries| {
            entries
                .map(|entry| entry.map(|entry| entry.path()))
                .collect::<std::io::Result<Vec<_>>>()
        })
        .with_context(|| format!("cannot list {}", folder.display()))?;
    entries.retain(|path| {
        path.file_name()
            .is_some_and(|name| !name.to_string_lossy().starts_with('.'))
    });
    entries.sort();
    Ok(entries)
}

fn is_image(file: &Path) -> bool {
    file.extension().is_some_and(|extension| {
        ["png", "jpg", "jpeg"]
            .iter()
            .any(|known| extension.eq_ignore_ascii_case(known))
    })
}

fn is_grey(image: &DynamicImage) -> bool {
    matches!(
        image.color(),
        ColorType::L8 | ColorType::La8 | ColorType::L16 | ColorType::La16
    )
}
