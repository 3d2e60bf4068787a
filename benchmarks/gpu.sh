#!/usr/bin/env bash
# The benchmarks on a machine with a GPU that has no network.
#
#   benchmarks/gpu.sh pack FILE.tar.gz   with a network: builds, and packs what the GPU machine needs
#   tar xzf FILE.tar.gz && gpu-benchmarks/gpu.sh run [FOLDER]
#                                        on the GPU machine: measures, prints the results, and
#                                        writes them to FOLDER
#
# `run` ends within SECONDS_IN_ALL (570). What matters first and small comes first: each figure is printed as it comes, and
# FOLDER has all of them so far. A process that takes longer than SECONDS_A_RUN (120), most of which compiles and tunes
# kernels, is left out. SUITE has more arguments for each suite, such as a smaller --preset. FEATURES are those that
# `pack` builds with (wgpu,cuda,fusion,autotune,persistence); without cuda, it needs no compiler of Burn's.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=gpu-benchmarks

fail() { echo "error: $*" >&2; exit 1; }

pack() {
    local file=$1
    [[ $(uname -sm) == "Linux x86_64" ]] || fail "pack on Linux on x86-64, the system that the program is for"
    cd "$here/.."
    # The program needs the glibc of this machine, or a newer one.
    cargo build --release --locked -p benchmarks --no-default-features --features "${FEATURES:-wgpu,cuda,fusion,autotune,persistence}"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/$name/lib"
    cp "${CARGO_TARGET_DIR:-target}/release/benchmarks" "$here/gpu.sh" "$work/$name/"
    strip "$work/$name/benchmarks" || echo "not stripped: there is no strip" >&2
    # These are pure Python. PyTorch is too large to pack: the GPU machine has to have it.
    python3 -m pip install --quiet --no-deps --only-binary=:all: --target "$work/$name/python" \
        torch-optimi flashoptim || echo "without optimi and FlashOptim: pip cannot fetch them" >&2
    # A machine with a Vulkan driver may lack the loader, and what NVIDIA's driver links to.
    local library path
    for library in libvulkan.so.1 libX11.so.6 libXext.so.6 libxcb.so.1 libXau.so.6 libXdmcp.so.6 libbsd.so.0 libmd.so.0; do
        path=$(ldconfig -p | sed -n "s/.*$library (.*x86-64.*=> //p" | head -n 1)
        if [[ -n $path ]]; then
            cp -L "$path" "$work/$name/lib/$library"
        else
            echo "without $library, which is not here (Debian's libvulkan1 and mesa-vulkan-drivers)" >&2
        fi
    done
    tar -C "$work" -czf "$file" "$name"
    echo "packed: $file, $(($(stat -c %s "$file") / 1048576)) MiB"
}

# Adds folders to the search path of libraries.
libraries() {
    local folder
    for folder in "$@"; do
        [[ -d $folder ]] || continue
        export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
}

# Sets python to a Python with PyTorch, if there is one.
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

# Finds CUDA's headers and compiler in a toolkit, or in the packages that pip installed with PyTorch.
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
    # pip installs them in several packages: links to them go into one folder.
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

# Finds the drivers of CUDA and Vulkan outside the usual folders.
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
    # The packed loader is for a machine without one.
    ldconfig -p | grep -q 'libvulkan\.so\.1 ' || libraries "$here/lib"
}

run() {
    local folder=$1 each=${SECONDS_A_RUN:-120}
    end=$((SECONDS + ${SECONDS_IN_ALL:-570}))
    read -ra suite <<<"${SUITE:-}"
    [[ -x $here/benchmarks ]] || fail "$here has no program: unpack the file of '$0 pack', and run the script in it"
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    find_python
    find_drivers
    find_cuda
    export PYTHONPATH=$here/python${PYTHONPATH:+:$PYTHONPATH}
    # Without it Mesa's drivers print a warning for every adapter.
    export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-$work}
    # The processes share compiled kernels and the results of the autotuner. Both versions of Burn read a file of this name,
    # and each its own settings.
    mkdir "$work/0.21" "$work/0.22"
    printf '[compilation]\ncache = "local"\n[autotune]\ncache = "local"\n' >"$work/0.21/cubecl.toml"
    printf '[environment]\npath = "local"\n' >"$work/0.22/cubecl.toml"

    nvidia-smi 2>/dev/null || echo "no nvidia-smi"
    echo "CUDA_PATH=${CUDA_PATH:-} python=$python"
    local backend=wgpu
    on 0.22 cuda-first "$each" --backend cuda "${first[@]}" || true
    if [[ -s $folder/cuda-first/results.json ]]; then
        backend=cuda
    else
        on 0.22 wgpu-first "$each" --backend wgpu "${first[@]}" || true
    fi
    on 0.22 "$backend-small" "$each" --backend "$backend" --preset small --part vit --batch-size 1,8 --checkpointing none,blocks \
        --operations default,lean --pools default,size-match --python "$python" --pytorch foreach,hook,torchao-8bit,hook-checkpoint,flashoptim-checkpoint || true
    on 0.22 "$backend-large" "$each" --backend "$backend" --preset large --part vit,gpt --batch-size 1 --checkpointing none,blocks \
        --pools default,size-match --python "$python" --pytorch foreach,hook,hook-checkpoint,flashoptim,flashoptim-checkpoint || true
    on 0.22 "$backend-states" "$each" --backend "$backend" --preset large --part vit --batch-size 1 --mode release \
        --checkpointing blocks --operations lean --optimizer adamw-one-pass,adamw-8bit,adamw-five-bytes --pools size-match \
        --no-pytorch || true
    [[ $backend == wgpu ]] || on 0.22 wgpu-first "$each" --backend wgpu "${first[@]}" || true
    on 0.21 "$backend-0.21" "$each" --backend "$backend" --preset small --part vit --batch-size 8 --checkpointing none \
        --fusion on --no-pytorch || true
    echo
    echo "results, in $folder:"
    cat "$folder"/*/table.md
}

# The first figures: a model that is small, and takes seconds.
first=(--preset mini --part vit --batch-size 1,8 --checkpointing none --pools default,size-match --no-pytorch)

# Runs a suite on a version of Burn, in the time that is left.
on() {
    local version=$1 name=$2 each=$3 left=$((end - SECONDS))
    shift 3
    if ((left < 1)); then
        echo "==> $name: left out, there is no time left"
        return
    fi
    echo
    echo "==> $name, at most $left s"
    # --within ends the suite; timeout is for a driver that hangs.
    (cd "$work/$version" && timeout --kill-after 5 $((left + 20)) "$here/benchmarks" --burn "$version" --fusion on,off \
        --within "$left" --time-limit "$each" --output "$folder/$name" "$@" "${suite[@]}" >"$work/table") || {
        local code=$?
        echo "==> $name ended with exit code $code"
        return "$code"
    }
}

case ${1:-} in
pack) pack "$(realpath "${2:?where to: $0 pack FILE.tar.gz}")" ;;
run) run "${2:-gpu-benchmarks-results}" ;;
*) fail "usage: $0 pack FILE.tar.gz | $0 run [FOLDER]" ;;
esac
