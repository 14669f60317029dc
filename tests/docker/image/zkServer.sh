#!/bin/sh
# The official image runs `zkServer.sh start-foreground`, and this does only that.
exec /opt/java/bin/java -cp '/opt/zookeeper/lib/*' -Dlog4j2.configurationFile=/opt/zookeeper/log4j2.properties \
    $SERVER_JVMFLAGS $JVMFLAGS org.apache.zookeeper.server.quorum.QuorumPeerMain "$ZOO_CONF_DIR/zoo.cfg"
