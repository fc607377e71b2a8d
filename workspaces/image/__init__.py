"""Builds the workspace runtime image on an engine, also where no registry can be reached. Synchronous: an operator's tool."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from primer_site.errors import PrimerError
from workspaces.image.base import ImageBuildFailed, choose
from workspaces.runtime import build as runtime

TAG: Final = "primer/workspace-runtime:1.0"
LABEL_RUNTIME: Final = "primer.runtime"
LABEL_RECIPE: Final = "primer.recipe"
DOCKERFILE: Final = Path(__file__).with_name("Dockerfile")
LABEL_CHECK: Final = "primer.image-check"  # on the container that looks at a new image
BUILD_TIMEOUT_S: Final = 600
CHECKED_FOR_S: Final = 600  # a container of a look at an image that is older than this belongs to a build that died
PACKAGE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9+.-]{0,99}")

# Runs in the finished image. Prints one JSON object: what is missing, which files are setuid, which compilers there are.
VERIFY: Final = r"""
import json, os, shutil, stat, sys
bad, setid = [], []
for name in ("json", "ctypes", "ssl", "sqlite3", "select", "zlib", "_blake2"):
    try: __import__(name)
    except ImportError: bad.append("module " + name)
bad += ["program " + n for n in ("python", "python3", "bash", "sh", "ls", "grep", "sed", "awk", "find", "ps") if not shutil.which(n)]
if sys.version_info < (3, 9): bad.append("python >= 3.9")
for top, dirs, files in os.walk("/"):
    dirs[:] = [d for d in dirs if os.path.join(top, d) not in ("/proc", "/sys", "/dev")]
    for n in dirs + files:
        p = os.path.join(top, n)
        try: mode = os.lstat(p).st_mode
        except OSError: continue
        if not stat.S_ISLNK(mode) and mode & 0o6000: setid.append(p)
st = os.stat("/workspace")
if (st.st_uid, st.st_gid, st.st_mode & 0o777) != (1000, 1000, 0o750): bad.append("/workspace owned by 1000:1000 with mode 0750")
if os.getuid() != 1000: bad.append("user 1000")
compilers = [n for n in ("cc", "gcc", "g++", "clang", "tcc", "as", "ld") if shutil.which(n)]
print(json.dumps({"bad": bad, "setid": setid[:20], "compilers": compilers}))
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What was asked for; `digest` tells whether the tagged image was made from the same."""

    base: str
    packages: tuple[str, ...]

    @property
    def digest(self) -> str:
        parts = [runtime.digest(), DOCKERFILE.read_text(), self.base, *sorted(self.packages)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def build(
    *, tag: str = TAG, base: str = "", packages: Sequence[str] = (), force: bool = False, engine_url: str = ""
) -> Iterator[str]:
    """Builds the image and yields progress lines; skips when `tag` was made from the same recipe, unless `force`.

    `packages` are Debian packages added to the base, `engine_url` defaults to the local engine. Raises `ImageBuildFailed`
    or `EngineUnavailable` with a sentence.
    """
    recipe = Recipe(base, tuple(packages))
    for name in recipe.packages:
        if PACKAGE_NAME.fullmatch(name) is None:
            raise ImageBuildFailed(f"{name!r} is not the name of a Debian package.")
    client = connect(engine_url)
    try:
        yield from _build(client, recipe, tag, force)
    finally:
        client.close()


def runtime_digest(tag: str = TAG, *, engine_url: str = "") -> str | None:
    """The digest of the runtime inside the image `tag` ("" when it carries none), or None when there is no such image."""
    client = connect(engine_url)
    try:
        found = labels(client, tag)
    finally:
        client.close()
    return None if found is None else found.get(LABEL_RUNTIME, "")


def connect(engine_url: str) -> Any:
    """A docker client; `EngineUnavailable` or `EngineForbidden` with a sentence when the engine does not answer."""
    from workspaces.providers.engine import open_local

    return open_local(engine_url, timeout_s=BUILD_TIMEOUT_S)


def labels(client: Any, tag: str) -> dict[str, str] | None:
    from docker.errors import ImageNotFound

    try:
        return dict(client.inspect_image(tag)["Config"].get("Labels") or {})
    except ImageNotFound:
        return None


def _build(client: Any, recipe: Recipe, tag: str, force: bool) -> Iterator[str]:
    from docker.errors import APIError

    now = labels(client, tag)
    if not force and now is not None and now.get(LABEL_RECIPE) == recipe.digest:
        yield f"{tag} is up to date (runtime {runtime.VERSION})"
        return
    try:
        base = yield from choose(client, recipe.base, recipe.packages if not recipe.base else ())
        image = yield from _docker_build(client, recipe, base)
        try:
            yield from _verify(client, image, recipe)
        except ImageBuildFailed:
            _forget(client, image)
            raise
        old = client.inspect_image(tag)["Id"] if now is not None else ""
        client.tag(image, *split(tag))
        if old not in ("", image):
            _forget(client, old)
    except APIError as exc:
        raise ImageBuildFailed("The engine refused a step of the build.", log=str(exc)[-4000:]) from exc
    try:
        _replaced_dropped(client, before=image)
    except PrimerError as exc:  # the image is there and has its name: what is left over goes another day
        yield f"warning: images that this one replaced may be left, the next build or primer prune removes them: {exc.detail}"
    yield f"built {tag} ({image[7:19]}, runtime {runtime.VERSION})"


def drop_replaced(tag: str = TAG, *, engine_url: str = "") -> list[str]:
    """Removes what an earlier build under `tag` made and nothing uses any more; returns the ids.

    A build does this too, but an image that a sandbox runs on at that moment stays, and so does that of a build that was
    killed. Raises `ProviderError` with a sentence.
    """
    client = connect(engine_url)
    try:
        return _replaced_dropped(client, before=tag)
    finally:
        client.close()


def _replaced_dropped(client: Any, *, before: str) -> list[str]:
    from workspaces.providers.engine import translate

    try:
        return _drop_replaced(client, before=before) if labels(client, before) is not None else []
    except Exception as exc:  # of the SDK and of the HTTP library below it
        raise translate(exc) from exc


def _drop_replaced(client: Any, *, before: str) -> list[str]:
    """Nameless results of our own builds that are older than the image `before`: a build under way is never among them.

    Whoever builds on our image inherits its labels, so a label alone does not make an image ours: its last step does.
    """
    from docker.errors import APIError

    removed = []
    for found in client.images(filters={"dangling": True, "label": LABEL_RECIPE, "before": before}):
        with contextlib.suppress(APIError):  # somebody else removed it meanwhile
            last_step = client.history(found["Id"])[0]["CreatedBy"]
            if LABEL_RECIPE in str(last_step) and _forget(client, found["Id"]):
                removed.append(str(found["Id"]))
    with contextlib.suppress(APIError):  # another such removal is under way
        client.prune_containers(filters={"label": LABEL_CHECK, "until": f"{CHECKED_FOR_S}s"})
    return removed


def _forget(client: Any, image: str) -> bool:
    """Removes an image without a name; whether it went: sandboxes may still run on it, then it stays."""
    from docker.errors import APIError

    with contextlib.suppress(APIError):
        if not client.inspect_image(image).get("RepoTags"):
            client.remove_image(image)
            return True
    return False


def split(tag: str) -> tuple[str, str]:
    """`host:5000/name:1.0` -> (`host:5000/name`, `1.0`): a colon before the last slash belongs to the host."""
    name, _, version = tag.rpartition(":")
    return (name, version) if name and "/" not in version else (tag, "latest")


def _docker_build(client: Any, recipe: Recipe, base: str) -> Generator[str, None, str]:
    """Yields the engine's step lines, returns the id of the image."""
    extra = " ".join(recipe.packages) if recipe.base else ""  # a base of ours has its packages already
    arguments = {"BASE": base, "PACKAGES": extra, "RUNTIME_DIGEST": runtime.digest()}
    stream = client.build(
        fileobj=context(),
        custom_context=True,
        buildargs=arguments,
        labels={LABEL_RECIPE: recipe.digest},
        network_mode="default" if extra else "none",
        rm=True,
        forcerm=True,
        decode=True,
    )
    image, tail, stopped = "", "", ""
    for item in stream:  # to its end, also after an error: a stream that is left keeps its connection
        tail = (tail + str(item.get("stream", "")))[-4000:]
        stopped = stopped or str(item.get("error", ""))[:200]
        image = str((item.get("aux") or {}).get("ID", "")) or image
        if (line := str(item.get("stream", "")).strip()).startswith("Step "):
            yield line[:120]
    if stopped:
        raise ImageBuildFailed(f"The image build stopped: {stopped}", log=tail)
    if not image:
        raise ImageBuildFailed("The engine ended the build without an image.", log=tail)
    return image


def context() -> io.BytesIO:
    """The build context: Dockerfile and runtime, as an uncompressed tar in memory (about 100 KB)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in (("Dockerfile", DOCKERFILE.read_bytes()), ("runtime.pyz", runtime.zipapp_bytes())):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    buffer.seek(0)
    return buffer


def _verify(client: Any, image: str, recipe: Recipe) -> Iterator[str]:
    """Runs the image once: what a sandbox needs is there, and no file can raise privileges."""
    found = json.loads(_run(client, image, ["python3", "-I", "-S", "-E", "-c", VERIFY]) or "{}")
    if found.get("bad", ["a python3 that runs"]):
        lacking = ", ".join(found.get("bad", ["a python3 that runs"]))
        raise ImageBuildFailed(f"The image lacks {lacking}.", hint="Use another base: primer image build --base IMAGE")
    if found["setid"]:
        raise ImageBuildFailed(f"The image still has setuid or setgid files: {', '.join(found['setid'])}.")
    if found["compilers"] and not (recipe.base or recipe.packages):
        raise ImageBuildFailed(f"The image has a compiler: {', '.join(found['compilers'])}.")
    if found["compilers"]:
        yield f"note: this base has a compiler ({', '.join(found['compilers'])})"
    yield "verified: python, tools, no setuid file, /workspace belongs to 1000"


def _run(client: Any, image: str, command: list[str]) -> str:
    """The stdout of a short-lived container without network, "" when it failed."""
    from docker.errors import APIError

    config = {
        "Image": image, "Entrypoint": [], "Cmd": command, "Labels": {LABEL_CHECK: "yes"},
        "HostConfig": {"NetworkMode": "none"},
    }  # fmt: skip
    container = client.create_container_from_config(config)["Id"]
    try:
        client.start(container)
        code = client.wait(container, timeout=120)["StatusCode"]
        return client.logs(container, stdout=True, stderr=False).decode() if code == 0 else ""
    except APIError:
        return ""  # python3 is not in the image: the caller says what is missing
    finally:
        client.remove_container(container, force=True, v=True)
