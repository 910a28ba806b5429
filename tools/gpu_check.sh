#!/usr/bin/env bash
# Everything that is known of a GPU only on one: tests, a soak, the benchmark.  Writes
# docs/gpu-results.md, and the whole output to $1 (a folder, build/gpu by default).  Needs a GPU, its
# driver, and a Python (PYTHON, default python3) that has numpy, numba, numba-cuda, scipy, rich,
# safetensors, pytest and hypothesis; PyTorch and CuPy are compared with where they are.  No network,
# no questions; less than eight minutes.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
OUT=${1:-build/gpu}
mkdir -p "$OUT"
export FLOWVM_TEST_GPU=1 FLOWVM_CACHE_DIR=${FLOWVM_CACHE_DIR:-$OUT/cache} PYTHONUNBUFFERED=1
export PYTHONPATH="$OUT/site${PYTHONPATH:+:$PYTHONPATH}"

# flowvm.ops and the like lie at the top level: without an install, links stand for it
mkdir -p "$OUT/site"
cp -r flowvm "$OUT/site/" && for part in ops graph autograd; do
  rm -rf "$OUT/site/flowvm/$part" && cp -r "$part" "$OUT/site/flowvm/$part"
done

failed=0
declare -a lines
step() { # step NAME SECONDS COMMAND...
  local name=$1 limit=$2 began=$SECONDS log
  shift 2
  log="$OUT/${name// /_}.log"
  timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null
  local code=$? last
  [[ $code -eq 0 ]] || failed=1
  last=$(grep -E '[0-9]+ (passed|failed|error)' "$log" | tail -n 1 | tr -d '=')
  lines+=("| $name | $([[ $code -eq 0 ]] && echo ok || echo "exit code $code") | $((SECONDS - began)) s | ${last:-} |")
  printf '%s: %s in %s s\n' "$name" "$code" "$((SECONDS - began))"
  [[ $code -eq 0 ]] || tail -n 30 "$log"
}
tests() { step "$1" "$2" "$PYTHON" -m pytest -q -p no:cacheprovider --import-mode=importlib "${@:3}"; }

step "doctor" 60 "$PYTHON" -m flowvm doctor
tests "VM on the device" 90 tests/cuda/test_vm_on_device.py
tests "graphs" 60 tests/cuda/test_device_graphs.py
tests "every op" 240 tests/cuda/test_generated_on_device.py
tests "training" 60 tests/cuda/test_training_on_device.py
step "soak" 60 "$PYTHON" tools/gpu_soak.py
step "tutorial 09" 60 "$PYTHON" tutorials/09_your_own_cuda_kernel.py
step "benchmark" 150 "$PYTHON" -m tools.bench.cuda

{
  echo "# What ran on a GPU"
  echo
  echo "Written by \`tools/gpu_check.sh\` on $(date -u +%Y-%m-%d): $("$PYTHON" -c '
import flowvm as flow
p = flow.cuda.get_device_properties(0)
print(f"{p.name}, {p.total_memory >> 30} GiB, compute capability {p.major}.{p.minor}")' 2>/dev/null || echo 'no device')," \
    "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)."
  echo
  echo "| what | result | time | tests |"
  echo "|---|---|---|---|"
  printf '%s\n' "${lines[@]}"
  echo
  echo "## Measured"
  echo
  grep '^|' "$OUT/benchmark.log"
} >"$OUT/gpu-results.md"
cp "$OUT/gpu-results.md" docs/gpu-results.md
cat docs/gpu-results.md
exit $failed
