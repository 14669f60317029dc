"""Sends this project's modules to executors that lack them, or have another version."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from pyspark import SparkContext

import consumer
import coordinator
import zk_group

PACKAGES = (coordinator, consumer)


def ship(sc: SparkContext) -> str | None:
    """Send the driver's own `coordinator` and `consumer` to the executors, where they precede installed ones.

    An application that imports them from `zk_group` has them in there: an executor's plain names are the application's.

    :returns: the zip's name; None when the driver itself runs from a zip, which `--py-files` has sent already.
    """
    folders = [Path(package.__path__[0]) for package in PACKAGES]
    if not all(folder.is_dir() for folder in folders):
        return None
    files = {
        f"{package.__name__.replace('.', '/')}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for package, folder in zip(PACKAGES, folders, strict=True)
        for path in sorted(folder.rglob("*.py"))
    }
    files["zk_group/__init__.py"] = Path(zk_group.__file__).read_bytes()
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]
    name = f"zk-group-coordinator-{coordinator.__version__}-{digest}.zip"
    if name not in (sc._python_includes or ()):
        path = Path(str(sc._temp_dir)) / name  # Spark serves it from there, and removes it with the context
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file, data in files.items():
                archive.writestr(file, data)
        sc.addPyFile(str(path))
    return name
