#!/bin/sh
exec /opt/java/bin/java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.level=ERROR -cp '/opt/zookeeper/lib/*' \
    org.apache.zookeeper.ZooKeeperMain "$@"
