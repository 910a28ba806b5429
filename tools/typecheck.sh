#!/usr/bin/env bash
# mypy over the package, the tools and the tutorials.  ops/, autograd/ and graph/ are imported as
# flowvm.ops and so on, which mypy cannot be told: it gets a folder of links in which they lie where
# they are imported from, and so do the files of flowvm/torch_names.  Paths in its output are the repository's.
#
#   tools/typecheck.sh [python] [mypy options]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$(command -v "${1:-.venv/bin/python}")")
shift $(($# > 0))

farm=build/types
rm -rf "$farm/flowvm"
mkdir -p "$farm/flowvm"
root=$PWD
for entry in flowvm/* ops autograd graph; do
  [[ $entry != *__pycache__ && -e $entry ]] && ln -s "$root/$entry" "$farm/flowvm/"
done

ln -s "$root"/flowvm/torch_names/[a-z]*.py "$farm/flowvm/" # which are imported as flowvm.mps

ln -sfn "$root/tools" "$farm/tools"

cd "$farm"
status=0
options=(--config-file "$root/pyproject.toml" --cache-dir "$root/.mypy_cache" "$@")
"$python" -m mypy "${options[@]}" -p flowvm -p tools >report.txt 2>&1 || status=$?
if [[ $status == 0 ]]; then # it would only say the same again
  "$python" -m mypy "${options[@]}" "$root"/tutorials/*.py "$root"/tests/conftest.py \
    >>report.txt 2>&1 || status=$?
fi
sed -E "s,^$root/,,; s,^flowvm/(ops|autograd|graph)/,\\1/," report.txt
exit $status
