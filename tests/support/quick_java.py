"""JVMs of Spark that start in half of the processor time: their classes are in a shared archive.

Class data sharing (JEP 350). A JVM that cannot use the archive, because its class path is another, does without.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from zk_group.coordinator.zk.embedded.ensemble import JVM_FLAGS, java


def java_options(cache: Path) -> str:
    """The value for `JDK_JAVA_OPTIONS`; the archive is made, once for a java and a PySpark, in the folder `cache`.

    :raises subprocess.CalledProcessError: when the application whose classes it shall hold fails.
    """
    machine = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr
    known = "".join(each if each.isalnum() else "-" for each in f"{version('pyspark')} {machine.splitlines()[1]}")
    archive = cache / f"{known}.jsa"
    if not archive.exists():
        unfinished = archive.with_suffix(f".{os.getpid()}")
        options = " ".join([*JVM_FLAGS, f"-XX:ArchiveClassesAtExit={unfinished}"])
        environment = {**os.environ, "JDK_JAVA_OPTIONS": options}
        subprocess.run([sys.executable, "-m", __name__], env=environment, check=True, capture_output=True, timeout=600)
        unfinished.rename(archive)
    quiet = "-Xlog:disable"  # one that does without says so on stdout, also where that is a consumer's events
    return " ".join([*JVM_FLAGS, quiet, f"-XX:SharedArchiveFile={archive}"])


def main() -> None:
    """Load what tests load, and wait until this application's JVM has written its archive."""
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as folder:
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        rows = (
            spark.readStream.format("rate")
            .load()
            .mapInArrow(lambda batches: batches, "timestamp timestamp, value long")
        )
        rows.writeStream.trigger(availableNow=True).option("checkpointLocation", f"{folder}/checkpoint").start(
            f"{folder}/rows", format="parquet"
        ).awaitTermination()
        spark.range(1000).groupBy("id").count().collect()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.proc.stdin.close()  # as when Python ends
        gateway.proc.wait(500)


if __name__ == "__main__":
    main()
