#!/usr/bin/env bash
# The benchmarks on a machine with a GPU that has no network.
#
#   benchmarks/gpu.sh pack FILE.tar.gz   here: builds, and packs what the other machine needs
#   tar xzf FILE.tar.gz && gpu-benchmarks/gpu.sh run [FOLDER]
#                                        there: measures, prints everything, leaves it in FOLDER
#
# `run` ends within ten minutes: SECONDS_IN_ALL (570) is shared by CUDA, which comes first, and wgpu;
# a process that takes longer than SECONDS_A_RUN (150) is left out. More arguments for the suite,
# such as a smaller --preset, go into SUITE.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=gpu-benchmarks

fail() { echo "error: $*" >&2; exit 1; }

pack() {
    local file=$1
    [[ $(uname -sm) == "Linux x86_64" ]] || fail "pack on Linux on x86-64: the program is to run there"
    cd "$here/.."
    # glibc only grows: built on an older one it runs on a newer, not the other way round.
    cargo build --release --locked -p benchmarks --features wgpu,cuda
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/$name"/{lib,wheels}
    cp "${CARGO_TARGET_DIR:-target}/release/benchmarks" "$here/gpu.sh" "$work/$name/"
    strip "$work/$name/benchmarks" || echo "not stripped: there is no strip" >&2
    # Pure Python; PyTorch itself is too large to carry and has to be there.
    python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work/$name/wheels" \
        torch-optimi || echo "without optimi: pip cannot fetch it" >&2
    # Not every machine with a Vulkan driver has the loader.
    local loader
    loader=$(ldconfig -p | sed -n 's/.*libvulkan\.so\.1 .*x86-64.*=> //p' | head -n 1)
    if [[ -n $loader ]]; then
        cp -L "$loader" "$work/$name/lib/libvulkan.so.1"
    else
        echo "without a Vulkan loader: there is none here (Debian's libvulkan1)" >&2
    fi
    tar -C "$work" -czf "$file" "$name"
    echo "packed: $file, $(($(stat -c %s "$file") / 1048576)) MiB"
}

# Folders in which programs find libraries.
libraries() {
    local folder
    for folder in "$@"; do
        [[ -d $folder ]] || continue
        export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
}

# Python with PyTorch, if there is one: sets python.
find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3 /opt/*/.venv/bin/python3 /opt/*/bin/python3; do
        if "$candidate" -c 'import torch' 2>/dev/null; then
            python=$candidate
            return
        fi
    done
    python=python3
}

# Headers and compiler of CUDA: those of a toolkit, or what pip installed with PyTorch.
find_cuda() {
    local toolkit
    for toolkit in "${CUDA_PATH:-}" /usr/local/cuda /opt/cuda /usr/local/cuda-*; do
        if [[ -n $toolkit && -f $toolkit/include/cuda_runtime.h ]] &&
            compgen -G "$toolkit/lib64/libnvrtc.so*" >/dev/null; then
            export CUDA_PATH=$toolkit
            libraries "$toolkit/lib64"
            return
        fi
    done
    # pip scatters them over packages: one folder of links brings them together.
    local merged=$work/cuda file folder
    mkdir -p "$merged/include" "$merged/lib"
    while read -r folder; do
        for file in "$folder"/include/*; do
            [[ -e $file ]] && ln -sfn "$file" "$merged/include/"
        done
        for file in "$folder"/lib/lib*.so*; do
            [[ -e $file ]] && ln -sfn "$file" "$merged/lib/"
        done
    done < <("$python" - 2>/dev/null <<'PYTHON'
import glob, importlib.util
spec = importlib.util.find_spec("nvidia")
for root in spec.submodule_search_locations if spec else []:
    print(*sorted(glob.glob(root + "/*")), sep="\n")
PYTHON
    )
    for file in "$merged"/lib/libnvrtc.so.*; do
        [[ -e $file ]] && ln -sfn "$file" "$merged/lib/libnvrtc.so"
    done
    if [[ -f $merged/include/cuda_runtime.h ]]; then
        export CUDA_PATH=$merged
        libraries "$merged/lib"
    fi
}

# The drivers of CUDA and Vulkan, where they are not in the usual place.
find_drivers() {
    local folder
    for folder in /usr/local/nvidia /usr/lib/wsl; do
        [[ -d $folder ]] || continue
        libraries "$folder/lib64" "$folder/lib"
        local driver=$folder/share/vulkan/icd.d/nvidia_icd.json
        if [[ -f $driver && -z ${VK_DRIVER_FILES:-} ]]; then
            export VK_DRIVER_FILES=$driver
        fi
    done
    # A loader of the machine's own comes first.
    ldconfig -p | grep -q 'libvulkan\.so\.1 ' || libraries "$here/lib"
}

run() {
    local folder=$1 all=${SECONDS_IN_ALL:-570} each=${SECONDS_A_RUN:-150} wheel
    local -a suite
    read -ra suite <<<"${SUITE:-}"
    [[ -x $here/benchmarks ]] || fail "$here has no program: unpack what '$0 pack' made, and run it there"
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    find_python
    find_drivers
    find_cuda
    for wheel in "$here"/wheels/*.whl; do
        # A wheel of pure Python need not be installed.
        [[ -e $wheel ]] && export PYTHONPATH=$wheel${PYTHONPATH:+:$PYTHONPATH}
    done
    # Mesa's drivers complain without it, once for every adapter.
    export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-$work}
    # Compiled kernels and the choices of the autotuner pass from process to process.
    cd "$work"
    printf '[compilation]\ncache = "local"\n[autotune]\ncache = "local"\n' >cubecl.toml

    nvidia-smi 2>/dev/null || echo "no nvidia-smi"
    echo "CUDA_PATH=${CUDA_PATH:-} python=$python"
    local start=$SECONDS left
    suite_on cuda "$folder" $((all * 7 / 10)) "$each"
    left=$((all - (SECONDS - start)))
    # What CUDA has shown need not be shown again in full.
    suite_on wgpu "$folder" $((left > 1 ? left : 1)) "$each" --batch-size 1 --checkpointing none \
        --part vit --no-pytorch
    echo "all of it in $((SECONDS - start)) s; in $folder:"
    ls -l "$folder"/*
}

suite_on() {
    local backend=$1 folder=$2 within=$3 each=$4
    shift 4
    local -a others=("$@")
    [[ $backend == cuda ]] && others+=(--python "$python")
    echo
    echo "==> $backend, at most $within s"
    # The clock of the suite ends it; timeout is there in case a driver hangs.
    timeout --kill-after 5 $((within + 20)) "$here/benchmarks" --backend "$backend" \
        --within "$within" --time-limit "$each" --output "$folder/$backend" \
        "${others[@]}" "${suite[@]}" || echo "==> $backend ended with exit code $?"
}

case ${1:-} in
pack) pack "$(realpath "${2:?where to: $0 pack FILE.tar.gz}")" ;;
run) run "${2:-gpu-benchmarks-results}" ;;
*) fail "usage: $0 pack FILE.tar.gz | $0 run [FOLDER]" ;;
esac
