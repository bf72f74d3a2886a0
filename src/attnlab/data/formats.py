"""Formats of data sets that no file extension tells: each a function from (path, layout) to `Records`."""

from collections.abc import Callable
from pathlib import Path

from attnlab.data.files import Records
from attnlab.data.spec import Layout

FORMATS: dict[str, Callable[[Path, Layout], Records]] = {}
