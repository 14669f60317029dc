#!/usr/bin/env bash
# A stand-in for the official image python:3.x-slim, for machines that reach no image registry: this machine's Python with
# its pip, the C libraries that it and the wheels need, and busybox for a shell.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tag=zk-group-coordinator/python:stand-in

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    cat <<HELP
usage: tests/docker/build-python-image.sh [TAG]     TAG is $tag if not given

Uses \$PYTHON (else the repository's .venv), busybox-static and a Docker engine.
Exit codes: 0 ok, 1 failed, 69 a needed program is missing.
HELP
    exit 0
fi
tag=${1:-$tag}

missing() {
    echo "build-python-image: $*" >&2
    exit 69
}

python=${PYTHON:-$here/../../.venv/bin/python}
prefix=$("$python" -c 'import sys; print(sys.base_prefix)') || missing "$python does not run"
version=$("$python" -c 'import sys; print("python{}.{}".format(*sys.version_info))')
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
busybox=$(command -v busybox) || missing "install busybox-static"

# The image is named by what it is made of.
parts=$({
    cat "${BASH_SOURCE[0]}"
    "$python" -c 'import sys; print(sys.version)'
    sha256sum <"$busybox"
} | sha256sum | cut -c 1-16)
if [[ $(docker image inspect --format '{{index .Config.Labels "parts"}}' "$tag" 2>/dev/null) == "$parts" ]]; then
    echo "$tag is there and current"
    exit 0
fi

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree"/{bin,etc,lib64,tmp,usr/bin,"$prefix/bin","$prefix/lib"}
chmod 1777 "$tree/tmp"

add_python() {
    cp -L "$prefix/bin/$version" "$tree$prefix/bin/$version"
    ln -s "$version" "$tree$prefix/bin/python3"
    cp -L "$prefix"/lib/libpython*.so* "$tree$prefix/lib/" 2>/dev/null || true
    (cd "$prefix/lib" && tar -c --exclude test --exclude __pycache__ --exclude site-packages --exclude dist-packages "$version") |
        tar -C "$tree$prefix/lib" -x
    # Debian's Python looks for packages elsewhere than others do: a .pth would not be read there, the environment is.
    mkdir -p "$tree/opt/pip"
    cp -r "$packages/pip" "$tree/opt/pip/"
}

# Where the machine has them: the loader in the image looks in the same places.
add_c_libraries() {
    local library
    {
        find "$tree$prefix" -type f \( -name '*.so*' -o -name "$version" \) -exec ldd {} + 2>/dev/null || true
        find "$packages" -name '*.so*' -path '*pyarrow*' -exec ldd {} + 2>/dev/null || true
    } | grep -o '/[^ ]*\.so[^ ]*' | grep -v -e "$tree" -e "$packages" | tr -d ':' | sort -u | while read -r library; do
        if [[ -e $library && ! -e $tree$library ]]; then
            mkdir -p "$tree$(dirname "$library")"
            cp -L "$library" "$tree$library"
        fi
    done
}

add_shell() {
    local applet
    cp "$busybox" "$tree/bin/busybox"
    for applet in sh cat echo env ls rm sleep; do ln -sf busybox "$tree/bin/$applet"; done
    echo 'root:x:0:0:root:/:/bin/sh' >"$tree/etc/passwd"
    echo 'root:x:0:' >"$tree/etc/group"
    echo 'hosts: files dns' >"$tree/etc/nsswitch.conf"
}

add_python
add_c_libraries
add_shell
tar -C "$tree" --owner=0 --group=0 -c . | docker import \
    -c "ENV PATH=$prefix/bin:/bin:/usr/bin" -c 'ENV PYTHONPATH=/opt/pip' -c "LABEL parts=$parts" -c 'CMD ["/bin/sh"]' - "$tag" >/dev/null
echo "$tag is built: $(docker image inspect --format '{{.Size}}' "$tag") bytes"
