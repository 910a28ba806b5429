#!/usr/bin/env bash
# Everything that is known of a GPU only on one: tests, a soak, the benchmark.  Writes
# docs/reference/gpu-results.md, also when steps fail, and the logs to $1 (build/gpu by default).
# Compiled kernels are kept in build/gpu/cache: a second run is quicker.  Needs a GPU, its driver,
# and a Python (PYTHON, default python3) that has numpy, numba,
# numba-cuda, scipy, rich, safetensors, pytest and hypothesis; PyTorch and CuPy are compared with
# where they are.  No network, no questions; less than eight minutes.
#
# ONLY, a regular expression, takes those steps whose names it matches, and leaves the page alone.
# FLOWVM_TEST_GPU=0 rehearses it without a GPU, on the driver that FLOWVM_CUDA_DRIVER names: tiny
# sizes, few tests, and docs/reference/gpu-results.md stays as it is.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
WORK=$PWD/build/gpu
mkdir -p "$WORK/site" "${1:-$WORK}"
OUT=$(cd "${1:-$WORK}" && pwd)
export FLOWVM_TEST_GPU=${FLOWVM_TEST_GPU:-1} PYTHONUNBUFFERED=1
export FLOWVM_CACHE_DIR=${FLOWVM_CACHE_DIR:-$WORK/cache}
TOTAL=${TOTAL:-465} # seconds for all steps together
rehearsed=$([[ $FLOWVM_TEST_GPU = 0 ]] && echo yes)

# flowvm.ops and the like lie at the top level: without an install, a copy stands for it, in which
# everything runs, for Python looks first where it is
ROOT=$PWD
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
rm -rf "$WORK/site" && mkdir -p "$WORK/site"
cp -r flowvm tools tests tutorials pyproject.toml "$WORK/site/"
cp -r ops graph autograd "$WORK/site/flowvm/"
cd "$WORK/site"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

failed=0
declare -a lines
step() { # step NAME SECONDS COMMAND...: a log, a line of the table, and an end to it
  local name=$1 limit=$2 began=$SECONDS log code last
  [[ $name =~ ${ONLY:-.} ]] || return
  shift 2
  log="$OUT/${name// /_}.log"
  ((limit > TOTAL - SECONDS)) && limit=$((TOTAL - SECONDS))
  if ((limit < 5)); then
    lines+=("| $name | not begun: the time was over | | |")
    failed=1
    return
  fi
  timeout -s INT -k 15 "$limit" "$@" >"$log" 2>&1 </dev/null
  code=$?
  [[ $code -eq 0 ]] || failed=1
  last=$(grep -aE '[0-9]+ (passed|failed|error|rounds)' "$log" | tail -n 1 | tr -d '=|')
  case $code in
    0) said=ok ;;
    124 | 137) said="ended after $limit s" ;;
    *) said="exit code $code" ;;
  esac
  lines+=("| $name | $said | $((SECONDS - began)) s | ${last:-} |")
  printf '%s: %s in %s s\n' "$name" "$said" "$((SECONDS - began))"
  [[ $code -eq 0 ]] || tail -n 40 "$log"
}
# the project's own options name plugins that may not be here
PYTEST=(-q -p no:cacheprovider -o addopts= --import-mode=importlib -ra -o faulthandler_timeout=60)
tests() { # tests NAME SECONDS PROCESSES ARGS...
  step "$1" "$2" "$PYTHON" -m tools.gpu_tests "$3" $(($2 - 15)) "${PYTEST[@]}" "${some[@]}" "${@:4}"
}

cores=$(nproc)
parts=$((cores > 14 ? 12 : cores > 3 ? cores - 2 : 1))
smoke=() some=() soak=20
[[ $rehearsed ]] && smoke=(--smoke) some=(-k "add- or softmax- or memory or numbers or sgd") soak=3

step "doctor" 120 "$PYTHON" -m flowvm doctor
step "first contact" 90 "$PYTHON" -m tools.gpu_first
tests "VM on the device" 90 1 tests/cuda/test_vm_on_device.py
tests "devices streams events memory errors" 90 1 tests/cuda/test_cuda_api.py \
  tests/cuda/test_errors_on_device.py tests/cuda/driver/test_exchange.py
tests "graphs" 60 1 tests/cuda/test_device_graphs.py
step "benchmark" 130 "$PYTHON" -m tools.bench.cuda "${smoke[@]}"
tests "every op" 180 "$parts" tests/cuda/kernels/test_generated_on_device.py
tests "training" 75 "$parts" tests/cuda/test_training_on_device.py
tests "order random and the rest" 75 "$parts" tests/cuda \
  --ignore=tests/cuda/kernels/test_generated_on_device.py --ignore=tests/cuda/test_vm_on_device.py \
  --ignore=tests/cuda/test_cuda_api.py --ignore=tests/cuda/test_device_graphs.py \
  --ignore=tests/cuda/test_training_on_device.py --ignore=tests/cuda/test_errors_on_device.py \
  --ignore=tests/cuda/driver/test_exchange.py
step "soak" 60 "$PYTHON" -m tools.gpu_soak "$soak"
step "tutorial 09" 60 "$PYTHON" tutorials/09_your_own_cuda_kernel.py

about=$(timeout 30 "$PYTHON" -c '
import flowvm as flow
p = flow.cuda.get_device_properties(0)
print(f"{p.name}, {p.total_memory >> 30} GiB, compute capability {p.major}.{p.minor}")' 2>/dev/null)
{
  echo "# What ran on a GPU"
  echo
  echo "Written by \`tools/gpu_check.sh\` on $(date -u +%Y-%m-%d): ${about:-no device}," \
    "commit $commit."
  echo
  echo "| what | result | time | tests |"
  echo "|---|---|---|---|"
  printf '%s\n' "${lines[@]}"
  echo
  echo "## What was there"
  echo
  grep -ahE '^(driver|device|packages|peer)' "$OUT/first_contact.log" 2>/dev/null | sed 's/^/- /'
  echo
  echo "## Measured"
  echo
  grep -a '^|' "$OUT/benchmark.log" || echo "Nothing: the benchmark did not get so far."
  if ((failed)); then
    echo
    echo "## What failed"
    echo
    echo '```'
    grep -ahE '^(FAILED|ERROR|the process or)|^E   +[A-Za-z.]*(Error|Exception)|^[a-zA-Z_.]*Error:' \
      "$OUT"/*.log | cut -c 1-300 | awk '!seen[$0]++' | head -n 60
    echo '```'
  fi
} >"$OUT/gpu-results.md"
[[ $rehearsed || ${ONLY:-} ]] || cp "$OUT/gpu-results.md" "$ROOT/docs/reference/gpu-results.md"
cat "$OUT/gpu-results.md"
exit $failed
