# shellcheck shell=bash
# Sourced by the scripts beside this folder. Provides a Python environment and a Java, created on first use:
#
#     ensure_venv EXTRAS     .venv in the repository root, with `pip install -e .[EXTRAS]`; sets $PYTHON
#     ensure_java            Java 17 or newer; on Debian and Ubuntu installed by apt, as root
#
# Scripts that keep the folder they are called in set PYTHONSAFEPATH=1: no consumer.py of that folder hides a module.
#
# Both return quickly when it exists; both end the script with a message and status 69 when it cannot be installed.
# Neither installs anything for `--help`: without a current .venv the script's opening comment is its usage.

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=$REPOSITORY/.venv
PYTHON=$VENV/bin/python
MISSING_PROGRAM=69

HELP=
for argument; do # of the script that sources this file
    case $argument in -h | --help) HELP=yes ;; esac
done
unset argument

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

missing() {
    say "$*"
    exit "$MISSING_PROGRAM"
}

# Runs the rest of the line while holding the lock NAME, so that concurrent scripts do not install twice.
# Without flock (macOS) the second one may install again, which pip permits.
with_lock() {
    local name=$1
    shift
    if ! command -v flock >/dev/null; then
        "$@"
        return
    fi
    mkdir -p "$VENV"
    exec 9>"$VENV/.$name.lock"
    flock 9
    "$@" 9>&-
    exec 9>&-
}

find_python() {
    local candidate
    for candidate in python3.14 python3.13 python3.12 python3.11 python3; do
        # A name on the path may be a pyenv shim for a version that is not installed: run it.
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# Whether the installation matches setup.cfg: the stamp of these extras, or of a superset, is a copy of setup.cfg.
venv_is_current() {
    local extras more=" spark demo test dev " # each includes the previous one
    if [[ $1 == bench ]]; then more=; fi      # no other includes it
    [[ -x $PYTHON ]] || return
    for extras in "$1" ${more#* "$1" }; do
        if cmp -s "$REPOSITORY/setup.cfg" "$VENV/.installed-$extras"; then return; fi
    done
    return 1
}

make_venv() {
    local extras=$1 python
    venv_is_current "$extras" && return
    if [[ ! -x $VENV/bin/pip ]]; then # pip is installed last: without it the venv is incomplete
        python=$(find_python) || missing "Python 3.11 or newer, with venv, is needed: install python3 and python3-venv"
        say "creating $VENV with $python"
        "$python" -m venv "$VENV"
    fi
    say "installing zk-group-coordinator[$extras]"
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --editable "$REPOSITORY[$extras]" >&2 || {
        say "pip could not install zk-group-coordinator[$extras]"
        exit 1
    }
    cp "$REPOSITORY/setup.cfg" "$VENV/.installed-$extras"
}

# The usage without a venv: the script's opening comment.
short_usage() {
    printf 'usage: scripts/%s [OPTIONS] [ARGUMENTS]\n\n' "${0##*/}"
    sed -n '2 s/^# \(.*\) See --help\.$/\1/p' "$0"
    printf '\nThe list of options needs .venv, which the first run of any script creates.\n'
}

# usage: ensure_venv EXTRAS    as in `ensure_venv dev`
ensure_venv() {
    venv_is_current "$1" && return
    if [[ -n $HELP ]]; then
        short_usage
        exit 0
    fi
    with_lock venv make_venv "$1"
}

java_program() {
    if [[ -n ${JAVA_HOME:-} && -x $JAVA_HOME/bin/java ]]; then
        echo "$JAVA_HOME/bin/java"
    else
        command -v java
    fi
}

# The major version of a Java, 17 for 17.0.15, from its `release` file where it has one (`java -version` takes 0.1 s).
java_major() {
    local java version release
    java=$(readlink -f "$1")
    release=${java%/bin/java}/release
    if [[ -r $release ]]; then
        version=$(sed -n 's/^JAVA_VERSION="\([^"]*\)".*/\1/p' "$release")
    else
        version=$("$1" -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p')
    fi
    version=${version#1.} # Java 8 reports 1.8
    version=${version%%[!0-9]*}
    echo "${version:-0}"
}

has_java() {
    local java
    java=$(java_program) && [[ $(java_major "$java") -ge 17 ]]
}

install_java() {
    has_java && return
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        missing "Java 17 or newer is needed: install a runtime (Debian, Ubuntu: openjdk-17-jre-headless) or set JAVA_HOME"
    fi
    say "installing a Java 17 runtime by apt"
    apt-get update -qq >&2 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >&2 ||
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends default-jre-headless >&2 ||
        missing "apt could not install a Java runtime; install Java 17 or newer manually"
    unset JAVA_HOME # it has no suitable Java
    has_java || missing "the Java that apt installed is older than 17; install Java 17 or newer manually"
}

ensure_java() {
    if [[ -n $HELP ]]; then return; fi
    has_java || with_lock java install_java
    # Spark's scripts fail on an invalid JAVA_HOME.
    if [[ -n ${JAVA_HOME:-} && ! -x $JAVA_HOME/bin/java ]]; then unset JAVA_HOME; fi
}
