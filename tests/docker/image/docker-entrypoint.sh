#!/bin/sh
# The official image's entrypoint in small: its ZOO_* variables become zoo.cfg and myid, once, then the command runs.
set -e
configuration=$ZOO_CONF_DIR/zoo.cfg
if [ ! -f "$configuration" ]; then
    cat >"$configuration" <<CFG
dataDir=$ZOO_DATA_DIR
dataLogDir=$ZOO_DATA_LOG_DIR
tickTime=$ZOO_TICK_TIME
initLimit=$ZOO_INIT_LIMIT
syncLimit=$ZOO_SYNC_LIMIT
autopurge.snapRetainCount=$ZOO_AUTOPURGE_SNAPRETAINCOUNT
autopurge.purgeInterval=$ZOO_AUTOPURGE_PURGEINTERVAL
maxClientCnxns=$ZOO_MAX_CLIENT_CNXNS
standaloneEnabled=$ZOO_STANDALONE_ENABLED
admin.enableServer=$ZOO_ADMINSERVER_ENABLED
CFG
    for server in ${ZOO_SERVERS:-"server.1=localhost:2888:3888;2181"}; do echo "$server" >>"$configuration"; done
    if [ -n "$ZOO_4LW_COMMANDS_WHITELIST" ]; then
        echo "4lw.commands.whitelist=$ZOO_4LW_COMMANDS_WHITELIST" >>"$configuration"
    fi
    for line in $ZOO_CFG_EXTRA; do echo "$line" >>"$configuration"; done
fi
if [ ! -f "$ZOO_DATA_DIR/myid" ]; then echo "${ZOO_MY_ID:-1}" >"$ZOO_DATA_DIR/myid"; fi
exec "$@"
