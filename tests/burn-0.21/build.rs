//! Looks for the devices that tests want. Where there is none, one ignored test stands in the place
//! of all of them, and says why. Writes the code of the docs for Burn 0.21 as documentation tests.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Installing a driver changes these.
    for place in ["/etc/ld.so.cache", "/usr/share/vulkan/icd.d"] {
        if Path::new(place).exists() {
            println!("cargo::rerun-if-changed={place}");
        }
    }
    for variable in [
        "VK_DRIVER_FILES",
        "VK_ICD_FILENAMES",
        "CUDA_VISIBLE_DEVICES",
        "ALL_ON_WGPU",
    ] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let adapters = wgpu_adapters();
    let devices = cuda_devices();
    println!("cargo::rustc-check-cfg=cfg(only_software)");
    // A driver in software takes seconds to compile a kernel, and the tests have a thousand.
    let has_gpu = matches!(adapters, Ok(Adapters { gpus: 1.., .. })) || matches!(devices, Ok(1..));
    if !has_gpu && env::var_os("ALL_ON_WGPU").is_none() {
        println!("cargo::rustc-cfg=only_software");
    }
    mount("wgpu", adapters.map(|adapters| adapters.all));
    mount("cuda", devices);
    mount("mpi", mpi_launchers());
    write_pages();
}

/// Writes the pages of `docs/burn-0.21` as documentation tests of this crate. The language of their
/// code blocks is `rs`: `burn-lean` tests those of the language `rust`, which are for Burn 0.22.
fn write_pages() {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut docs = above.map(|folder| folder.join("docs/burn-0.21"));
    let docs = docs.find(|docs| docs.is_dir()).expect("the docs are there");
    println!("cargo::rerun-if-changed={}", docs.display());
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo gives a folder"));
    let mut modules = String::new();
    let pages = fs::read_dir(docs).expect("the docs are there");
    for path in pages.map(|page| page.expect("the folder is readable").path()) {
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else {
            continue;
        };
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path).expect("the page is readable");
        let text = text.replace("```rs", "```rust");
        let page = folder.join(format!("{name}.page"));
        fs::write(&page, text).expect("the folder is writable");
        let module = name.to_lowercase().replace(['-', '.'], "_");
        modules += &format!("#[doc = include_str!({page:?})] mod {module} {{}}\n");
    }
    fs::write(folder.join("pages.rs"), modules).expect("the folder is writable");
}

/// The adapters that wgpu has to choose from.
struct Adapters {
    all: usize,
    /// Those that are no drivers in software.
    gpus: usize,
}

/// Mounts the tests of `promises/{device}`, or says in their place why not.
fn mount(device: &str, found: Result<usize, String>) {
    println!("cargo::rustc-check-cfg=cfg(has_{device})");
    let missing = match found {
        Ok(1..) => return println!("cargo::rustc-cfg=has_{device}"),
        Ok(0) => "the driver has no device".to_owned(),
        Err(reason) => reason,
    };
    let reason = format!("skipped, no {device}: {missing}");
    let test = format!("#[test] #[ignore = {reason:?}] fn every_promise() {{}}");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo gives a folder"));
    fs::write(folder.join(format!("{device}.rs")), test).expect("the folder is writable");
}

/// Whether several processes can be started together.
fn mpi_launchers() -> Result<usize, String> {
    if cfg!(not(feature = "mpi")) {
        return Err("the feature mpi is off".into());
    }
    let found = std::process::Command::new("mpirun")
        .arg("--version")
        .output();
    match found {
        Ok(_) => Ok(1),
        Err(error) => Err(format!(
            "mpirun: {error}; install MPI, such as Debian's openmpi-bin"
        )),
    }
}

#[cfg(feature = "wgpu")]
#[expect(unsafe_code, reason = "what a driver does cannot be checked")]
fn wgpu_adapters() -> Result<Adapters, String> {
    const WAY_OUT: &str = "install a Vulkan driver, such as Debian's mesa-vulkan-drivers";
    if cfg!(target_os = "macos") {
        // Metal comes with the system.
        return Ok(Adapters { all: 1, gpus: 1 });
    }
    // SAFETY: the library is the system's Vulkan loader, meant to be loaded by programs.
    let loader = unsafe { ash::Entry::load() }
        .map_err(|_| format!("no Vulkan loader (libvulkan1); {WAY_OUT}"))?;
    let refused = |code| format!("{code}; {WAY_OUT}");
    // SAFETY: no extensions and no allocator of our own; the instance outlives its devices, which
    // are only counted.
    unsafe {
        let instance = loader
            .create_instance(&ash::vk::InstanceCreateInfo::default(), None)
            .map_err(refused)?;
        let adapters = instance.enumerate_physical_devices();
        let adapters = adapters.map(|adapters| Adapters {
            all: adapters.len(),
            gpus: adapters
                .iter()
                .map(|adapter| instance.get_physical_device_properties(*adapter))
                .filter(|adapter| adapter.device_type != ash::vk::PhysicalDeviceType::CPU)
                .count(),
        });
        instance.destroy_instance(None);
        match adapters.map_err(refused)? {
            Adapters { all: 0, .. } => Err(format!("no adapter; {WAY_OUT}")),
            some => Ok(some),
        }
    }
}

#[cfg(not(feature = "wgpu"))]
fn wgpu_adapters() -> Result<Adapters, String> {
    Err("built without --features wgpu".into())
}

/// How many devices CUDA has.
#[cfg(feature = "cuda")]
#[expect(unsafe_code, reason = "what a driver does cannot be checked")]
fn cuda_devices() -> Result<usize, String> {
    use libloading::{Library, Symbol};
    use std::ffi::c_int;

    let name = if cfg!(windows) {
        "nvcuda.dll"
    } else {
        "libcuda.so.1"
    };
    // SAFETY: the library is NVIDIA's driver, and the two functions are declared as in its
    // `cuda.h`.
    unsafe {
        let driver =
            Library::new(name).map_err(|_| format!("no driver ({name}); install NVIDIA's"))?;
        let init: Symbol<'_, unsafe extern "C" fn(u32) -> c_int> =
            driver.get(b"cuInit").map_err(|error| error.to_string())?;
        let count: Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> = driver
            .get(b"cuDeviceGetCount")
            .map_err(|error| error.to_string())?;
        let mut devices = 0;
        match (init(0), count(&raw mut devices)) {
            (0, 0) => Ok(usize::try_from(devices).unwrap_or(0)),
            (0, code) | (code, _) => Err(format!("the driver refuses with CUDA error {code}")),
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda_devices() -> Result<usize, String> {
    Err("built without --features cuda".into())
}
