# Sourced by the other scripts: makes .venv beside the project and installs Dragoman into it, once.
# $1: the extras to install, for example "embedded" or "dev,embedded".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
extras=$1
stamp=.venv/.installed-${extras//,/-}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "Dragoman needs Python 3.11 or newer; set PYTHON to one, for example: PYTHON=python3.12 $0" >&2
  exit 2
fi
if [ ! -x .venv/bin/python ]; then
  echo "Making .venv …" >&2
  if ! "$python" -m venv .venv 2>/dev/null; then
    rm -rf .venv
    # Debian keeps venv in a package of its own.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
      "$python" -m venv .venv
    else
      echo "Python's venv module is missing; on Debian or Ubuntu: sudo apt install python3-venv" >&2
      exit 2
    fi
  fi
fi
if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ] || [ requirements.lock -nt "$stamp" ]; then
  echo "Installing Dragoman [$extras] …" >&2
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e ".[$extras]"
  case $extras in *dev*)
    # It asks for one exact botocore, which fits nothing else, and runs with any.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.lock --no-deps ministack
  esac
  touch "$stamp"
fi
