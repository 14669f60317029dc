"""A Spark application of its own process, with a pool and a query, for tests that kill it.

`python -m tests.support.spark_driver ZK GROUP TOPIC FOLDER` runs until it is killed. Each batch is written to
`FOLDER/batches/[batch]-[process].json`, whole or not at all.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from consumer.spark import FetcherPool, register


def main(zk: str, group: str, topic: str, folder: Path) -> None:
    spark = (
        SparkSession.builder.master("local[4]")
        .appName("killed")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    (folder / "batches").mkdir(exist_ok=True)

    def write(frame: DataFrame, batch: int) -> None:
        rows = [
            [row.topic, row.partition, row.offset] for row in frame.select("topic", "partition", "offset").collect()
        ]
        target = folder / "batches" / f"{batch}-{os.getpid()}.json"
        target.with_suffix(".tmp").write_text(json.dumps(rows))
        target.with_suffix(".tmp").rename(target)

    pool = FetcherPool(
        spark,
        {topic: 1},
        zk=zk,
        group=group,
        slots=2,
        session_timeout_ms=4000,
        seal_interval_ms=50,
        log_dir=str(folder / "log"),
        segments_dir=str(folder / "segments"),
    )
    pool.start()
    stream = spark.readStream.format("zk_group").option("zk", zk).option("group", group).load()
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    running = writer.trigger(processingTime="50 milliseconds").start()
    while running.isActive:
        time.sleep(0.1)
    running.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
