#!/usr/bin/env bash
# A Docker engine for the tests, where none runs: a private dockerd with everything of its own in one folder.
# `start` prints the variables to set on stdout, for eval; messages go to stderr.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
root=${ZK_GROUP_DOCKER_DIR:-$repository/.docker-engine}
host=unix://$root/docker.sock
pid_file=$root/dockerd.pid

usage() {
    cat <<'HELP'
usage: tests/docker/engine.sh start | stop | status

  start   nothing where an engine answers; else start a private dockerd, as root (on Debian and Ubuntu what is missing
          is installed by apt). Prints `export` lines: eval "$(tests/docker/engine.sh start)"
  stop    stop the dockerd that `start` started, its containers and networks, and undo what it did to the host
  status  the version of the engine that answers; exits 1 when none does

Its folder is .docker-engine in the repository, or $ZK_GROUP_DOCKER_DIR; its images stay there for the next start.
Exit codes: 0 ok, 1 failed, 2 usage, 69 a needed program is missing.
HELP
}

say() { echo "docker-engine: $*" >&2; }

missing() {
    say "$*"
    exit 69
}

answers() { command -v docker >/dev/null && docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

apt_updated=
apt_install() {
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then missing "install $* (this needs root and apt)"; fi
    say "installing $* by apt"
    if [[ -z $apt_updated ]]; then
        apt-get update -qq >&2 || true
        apt_updated=yes
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$root/apt.log" 2>&1 || {
        tail -n 5 "$root/apt.log" >&2
        missing "apt could not install $*"
    }
}

# The process id of our own dockerd, and of nothing else that may have its number by now.
own_dockerd() {
    local pid
    pid=$(cat "$pid_file" 2>/dev/null) || return
    [[ -n $pid ]] && tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -F -- "--pidfile $pid_file " >/dev/null && echo "$pid"
}

start_dockerd() {
    [[ $(id -u) == 0 ]] || missing "no Docker engine answers, and only root can start one"
    # A unix socket's path ends at 107 characters.
    ((${#host} < 100)) || missing "$root is too long a path for a socket: set ZK_GROUP_DOCKER_DIR to a shorter one"
    if ! command -v dockerd >/dev/null || ! command -v iptables >/dev/null; then apt_install docker.io iptables; fi
    # What dockerd changes on the host and does not put back.
    cat /proc/sys/net/ipv4/ip_forward >"$root/ip_forward"
    iptables -S FORWARD 2>/dev/null | sed -n 1p >"$root/forward_policy" || true
    rm -f "$pid_file"
    setsid nohup dockerd --host "$host" --data-root "$root/data" --exec-root "$root/exec" --pidfile "$pid_file" \
        --log-level warn >"$root/dockerd.log" 2>&1 </dev/null &
    local deadline=$((SECONDS + 30))
    until answers; do
        if ((SECONDS > deadline)); then
            tail -n 20 "$root/dockerd.log" >&2
            say "dockerd did not come up within 30 s"
            exit 1
        fi
        sleep 0.1
    done
    say "started dockerd $(own_dockerd)"
}

start() {
    mkdir -p "$root"
    if answers; then
        say "an engine answers already"
    else
        export DOCKER_HOST=$host
        answers || start_dockerd
        printf 'export DOCKER_HOST=%q\n' "$host"
    fi
    if docker compose version >/dev/null 2>&1; then
        echo "export COMPOSE_COMMAND='docker compose'"
    else # Debian 12 has no Compose v2; its 1.29 does
        command -v docker-compose >/dev/null || apt_install docker-compose
        echo "export COMPOSE_COMMAND=docker-compose"
    fi
    # What build-zk-image.sh puts into its image as a shell.
    command -v busybox >/dev/null || apt_install busybox-static
}

# In this order: a network cannot go while a container is in it, and a paused container cannot be removed.
remove_containers() {
    local container
    for container in $(docker -H "$host" ps -aq 2>/dev/null); do
        docker -H "$host" unpause "$container" >/dev/null 2>&1 || true
        docker -H "$host" rm --force --volumes "$container" >/dev/null || true
    done
    docker -H "$host" network prune --force >/dev/null 2>&1 || true
}

restore_host() {
    local mount
    for mount in "$root"/exec/netns/*; do umount "$mount" 2>/dev/null || true; done
    ip link del docker0 2>/dev/null || true
    iptables-save | grep -v -e DOCKER -e docker0 -e ' br-' | iptables-restore || true
    if [[ -s $root/forward_policy ]]; then iptables $(cat "$root/forward_policy") || true; fi
    cat "$root/ip_forward" >/proc/sys/net/ipv4/ip_forward || true
}

stop() {
    local pid
    pid=$(own_dockerd) || return 0
    remove_containers
    kill "$pid"
    local deadline=$((SECONDS + 15))
    while own_dockerd >/dev/null && ((SECONDS < deadline)); do sleep 0.1; done
    restore_host
    rm -f "$pid_file"
    say "stopped dockerd $pid"
}

status() {
    answers || export DOCKER_HOST=$host
    if ! answers; then
        say "no engine answers"
        exit 1
    fi
    docker version --format 'engine {{.Server.Version}}, API {{.Server.APIVersion}}'
}

case "${1:-}" in
    start) start ;;
    stop) stop ;;
    status) status ;;
    -h | --help) usage ;;
    *)
        usage >&2
        exit 2
        ;;
esac
