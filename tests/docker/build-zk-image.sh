#!/usr/bin/env bash
# A stand-in for the official image zookeeper:3.9, for machines that reach no image registry: this machine's Java, the C
# libraries that it needs, busybox, and ZooKeeper's jars from PySpark. Same variables, volumes, ports and command.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tag=zk-group-coordinator/zookeeper:3.9

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    cat <<HELP
usage: tests/docker/build-zk-image.sh [TAG]     TAG is $tag if not given

Builds nothing when the image is there and made of the same parts. Uses \$PYTHON (else the repository's .venv), whose
PySpark has the jars, \$JAVA_HOME (else the java on the path), busybox-static and a Docker engine.
Exit codes: 0 ok, 1 failed, 69 a needed program is missing.
HELP
    exit 0
fi
tag=${1:-$tag}

missing() {
    echo "build-zk-image: $*" >&2
    exit 69
}

python=${PYTHON:-$here/../../.venv/bin/python}
jars=$("$python" -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("pyspark").origin).parent / "jars")') ||
    missing "$python has no PySpark, whose jars hold ZooKeeper"
java_home=${JAVA_HOME:-}
if [[ -z $java_home ]]; then
    command -v java >/dev/null || missing "java is not installed"
    java_home=$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")
fi
busybox=$(command -v busybox) || missing "install busybox-static"

# The image is named by what it is made of.
parts=$({
    cat "$here/build-zk-image.sh" "$here"/image/*
    ls "$jars"
    cat "$java_home/release"
    sha256sum <"$busybox"
} | sha256sum | cut -c 1-16)
if [[ $(docker image inspect --format '{{index .Config.Labels "parts"}}' "$tag" 2>/dev/null) == "$parts" ]]; then
    echo "$tag is there and current"
    exit 0
fi

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

add_java() {
    local java=$tree/opt/java
    if [[ -d $java_home/jmods ]]; then
        # java.desktop for its java.beans, which log4j uses.
        "$java_home/bin/jlink" --strip-debug --no-header-files --no-man-pages --output "$java" --add-modules \
            java.base,java.desktop,java.logging,java.management,java.naming,java.security.jgss,java.security.sasl,java.sql,java.xml,jdk.crypto.ec,jdk.management,jdk.net,jdk.unsupported,jdk.zipfs
    else
        mkdir -p "$java"
        local part
        for part in bin lib conf; do cp -rL "$java_home/$part" "$java/$part" 2>/dev/null || true; done
    fi
    # Their C libraries (X11, fonts, sound) would come along, and no server draws.
    rm -f "$java"/lib/lib{awt,awt_xawt,awt_headless,fontmanager,javajpeg,lcms,mlib_image,jawt,jsound,splashscreen}.so
}

# Where the machine has them: the loader in the image looks in the same places.
add_c_libraries() {
    local java=$tree/opt/java file library
    for file in "$java/bin/java" "$java"/lib/*.so "$java"/lib/server/*.so; do
        LD_LIBRARY_PATH=$java/lib:$java/lib/server ldd "$file" 2>/dev/null || true
    done | grep -o '/[^ ]*\.so[^ ]*' | grep -v "$tree" | sort -u | while read -r library; do
        mkdir -p "$tree$(dirname "$library")"
        cp -L "$library" "$tree$library"
    done
}

add_shell() {
    local applet
    cp "$busybox" "$tree/bin/busybox"
    for applet in sh cat echo env grep hostname id ip kill ls mkdir nc netstat ps rm sed sleep tail tr wget; do
        ln -sf busybox "$tree/bin/$applet"
    done
    echo 'root:x:0:0:root:/:/bin/sh' >"$tree/etc/passwd"
    echo 'root:x:0:' >"$tree/etc/group"
    echo 'hosts: files dns' >"$tree/etc/nsswitch.conf"
}

add_zookeeper() {
    local jar
    # The lists of the embedded ensemble; a name is a prefix.
    for jar in $(cd "$here/../.." && "$python" -c 'from zk_group.coordinator.zk.embedded.ensemble import CLI_JARS; print(*CLI_JARS)'); do
        cp "$jars/$jar"*.jar "$tree/opt/zookeeper/lib/"
    done
    cp "$here/image/log4j2.properties" "$tree/opt/zookeeper/"
    install -m 755 "$here/image/docker-entrypoint.sh" "$tree/"
    install -m 755 "$here/image/zkServer.sh" "$here/image/zkCli.sh" "$tree/bin/"
}

mkdir -p "$tree"/{bin,etc,lib64,tmp,conf,data,datalog,logs,opt/zookeeper/lib}
chmod 1777 "$tree/tmp"
add_java
add_c_libraries
add_shell
add_zookeeper
tar -C "$tree" --owner=0 --group=0 -c . | docker import \
    -c 'ENV PATH=/bin:/opt/java/bin' -c 'ENV JAVA_HOME=/opt/java' \
    -c 'ENV ZOO_CONF_DIR=/conf' -c 'ENV ZOO_DATA_DIR=/data' -c 'ENV ZOO_DATA_LOG_DIR=/datalog' -c 'ENV ZOO_LOG_DIR=/logs' \
    -c 'ENV ZOO_TICK_TIME=2000' -c 'ENV ZOO_INIT_LIMIT=5' -c 'ENV ZOO_SYNC_LIMIT=2' \
    -c 'ENV ZOO_AUTOPURGE_PURGEINTERVAL=0' -c 'ENV ZOO_AUTOPURGE_SNAPRETAINCOUNT=3' -c 'ENV ZOO_MAX_CLIENT_CNXNS=60' \
    -c 'ENV ZOO_STANDALONE_ENABLED=true' -c 'ENV ZOO_ADMINSERVER_ENABLED=true' \
    -c 'EXPOSE 2181 2888 3888 8080' -c 'VOLUME ["/data","/datalog","/logs"]' -c "LABEL parts=$parts" \
    -c 'ENTRYPOINT ["/docker-entrypoint.sh"]' -c 'CMD ["zkServer.sh","start-foreground"]' - "$tag" >/dev/null
echo "$tag is built: $(docker image inspect --format '{{.Size}}' "$tag") bytes"
