# What bin/demo and bin/check share: sourced with $root set.  Makes and refreshes $root/.venv and the extensions.
# Everything here may run twice without harm; nothing asks a question.

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

# run COMMAND...: say it, as one could type it, then do it.
run() {
    printf '$'
    for word; do
        case $word in
            *[!A-Za-z0-9_./:=,-]*) printf " '%s'" "$word" ;;
            *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    "$@"
}

# packages WHAT-FOR PACKAGE...: install Debian packages as root, or say which are wanted.
packages() {
    what=$1; shift
    [ $# -gt 0 ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $* ($what)"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq </dev/null && apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null &&
            return 0
    fi
    printf '%s: please install: %s (%s)\n' "${0##*/}" "$*" "$what" >&2
    return 1
}

# tools PROGRAM:PACKAGE...: print the packages whose program is missing.
tools() {
    for pair; do
        command -v "${pair%%:*}" >/dev/null || printf '%s\n' "${pair#*:}"
    done
}

# The first Python that is new enough and can compile extensions and make environments.
find_python() {
    for candidate in ${CONFLUO_PYTHON:-} python3 python3.13 python3.12 python3.11; do
        command -v "$candidate" >/dev/null || continue
        "$candidate" - <<'PY' && { command -v "$candidate"; return 0; }
import sys, sysconfig, os
try:
    import venv, ensurepip
except ImportError:
    sys.exit(1)
sys.exit(sys.version_info < (3, 11) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))
PY
    done 2>/dev/null
    return 1
}

# environment [EXTRA [MEANWHILE]]: $root/.venv with the dependencies of pyproject.toml (and those of EXTRA), built
# extensions in place.  MEANWHILE: a function that installs packages while those of Python are installed.
environment() {
    extra=${1:-}
    meanwhile=${2:-:}
    # shellcheck disable=SC2046
    packages "to compile" $(tools cc:gcc cc:libc6-dev) || die "no C compiler"
    python=$(find_python) || {
        packages "Python 3.11 or newer" python3 python3-venv python3-dev && python=$(find_python)
    } || die "no Python 3.11 or newer with venv and headers"
    "$meanwhile" &
    job=$!

    # An environment knows its own path: one that was copied with its checkout is made anew.
    home=$(sed -n 's/^command = .* //p' "$root/.venv/pyvenv.cfg" 2>/dev/null || true)
    if [ "$home" != "$root/.venv" ] || ! "$root/.venv/bin/python" -c '' 2>/dev/null; then
        say "making .venv with $python"
        rm -rf "$root/.venv"
        "$python" -m venv "$root/.venv"
    fi
    python=$root/.venv/bin/python
    stamp=$root/.venv/confluo-${extra:-plain}
    "$python" - "$root/pyproject.toml" "$extra" >"$stamp.new" <<'PY'
import sys, tomllib
with open(sys.argv[1], "rb") as f:
    project = tomllib.load(f)
lists = [project["build-system"]["requires"], project["project"]["dependencies"]]
if sys.argv[2]:
    lists.append(project["project"]["optional-dependencies"][sys.argv[2]])
print("\n".join(dict.fromkeys(item for items in lists for item in items)))
PY
    if ! cmp -s "$stamp.new" "$stamp"; then
        say "installing what pyproject.toml asks for${extra:+, with [$extra]}"
        # Python compiles what it imports, and most of these packages is never imported.
        "$python" -m pip install -qq --no-input --no-compile --disable-pip-version-check -r "$stamp.new" </dev/null
        mv "$stamp.new" "$stamp"
    fi

    wait "$job" || true
    mkdir -p "$root/build"
    # The same sources are compiled again by the packaging test, after a switch between branches, and in the next
    # clone: the caches are the user's, as pip's is.
    CONFLUO_CYTHON_CACHE=${CONFLUO_CYTHON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/confluo-cython}
    export CONFLUO_CYTHON_CACHE
    if command -v ccache >/dev/null; then
        CC="ccache ${CC:-cc}" CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$root
        export CC CCACHE_NOHASHDIR CCACHE_BASEDIR
    fi
    [ -n "$(find "$root/confluo_tools/core" -name '*.so' -print -quit)" ] || say "compiling pyx/ (the first time takes minutes)"
    (cd "$root" && "$python" setup.py build_ext --inplace -j "$(nproc)" </dev/null >build/build.log 2>&1) || {
        grep -iE -B2 -A12 'error' "$root/build/build.log" >&2 || tail -n 40 "$root/build/build.log" >&2
        die "compiling failed; all of it stands in build/build.log"
    }
}
