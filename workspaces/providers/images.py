"""Images on a docker engine: finding them, checking their interpreter, and bringing the runtime into those that lack it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from primer_site.errors import FieldError, Invalid
from workspaces.providers import manifests
from workspaces.providers.base import EngineUnavailable, ImageNotFound, ImageUnsuitable, ProviderError, SandboxSpec
from workspaces.providers.engine import Engine, Missing
from workspaces.runtime import build as runtime

CHECK_TIMEOUT_S: Final = 20
RUNTIME_NAME: Final = "runtime.pyz"
LABEL_MADE_BY: Final = "primer.made-by"  # the instance that made a runtime volume; every instance may use it
# What the runtime and the probes import; Debian's python3-minimal lacks ctypes and json. Runs on any python 3.
INTERPRETER_CHECK: Final = """
import sys
bad = [] if sys.version_info >= (3, 9) else ["python 3.9 or later (it has %d.%d)" % sys.version_info[:2]]
for name in "ctypes json select socket struct fcntl termios resource signal zipimport zlib _blake2".split():
    try: __import__(name)
    except Exception: bad.append("the module " + name)
print(", ".join(bad) or "ok")
"""


class Images:
    """Answers about one engine's images are kept by image id, under which nothing ever changes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._suitable: set[str] = set()
        self._filled: dict[str, str] = {}  # runtime volume -> its time of creation, after it was read back
        self._filling = asyncio.Lock()

    async def facts(self, reference: str) -> manifests.ImageFacts:
        """What the engine knows about an image it has; `ImageNotFound` otherwise."""
        try:
            return manifests.ImageFacts.from_inspect(await self._engine.call("inspect_image", reference))
        except Missing as exc:
            raise ImageNotFound(f"The image {reference} is not on the engine.", log=exc.log) from exc

    async def names(self) -> list[str]:
        """Tags of the engine's images, sorted; what has no tag cannot be named in a template."""
        found = await self._engine.call("images")
        return sorted({str(tag) for image in found for tag in image.get("RepoTags") or () if "<none>" not in tag})

    async def find(self, spec: SandboxSpec) -> manifests.ImageFacts:
        """The spec's image, pulled if its name has a registry, and checked: it can run the runtime."""
        check_reference(spec.image)
        try:
            image = await self.facts(spec.image)
        except ImageNotFound as exc:
            if not manifests.registry(spec.image):
                raise ImageNotFound(exc.detail, hint=missing_hint(spec.image), log=exc.log) from exc
            await self.pull(spec.image)
            image = await self.facts(spec.image)
        await self._check_suitable(spec, image)
        return image

    async def can_be_pulled(self, reference: str) -> bool:
        """Whether the image is absent, and its name says where it can be had."""
        check_reference(reference)
        if not manifests.registry(reference):
            return False
        try:
            await self.facts(reference)
        except ImageNotFound:
            return True
        return False

    async def pull(self, reference: str) -> None:
        """Lets the engine fetch the image. A caller who is cancelled does not wait: the engine gives up when we hang up."""
        name, _, tag = reference.partition("@") if "@" in reference else reference.rpartition(":")
        if not name or "/" in tag:
            name, tag = reference, "latest"
        hang_up = threading.Event()
        try:
            await self._engine.run(lambda client: follow_pull(client, name, tag, hang_up))
        except EngineUnavailable:
            raise
        except ProviderError as exc:
            raise ImageNotFound(
                f"The image {reference} is not on the engine and cannot be pulled.", log=exc.log
            ) from exc
        finally:
            hang_up.set()

    def needs_runtime(self, image: manifests.ImageFacts) -> bool:
        """Whether the runtime must be brought in: the image has none, or that of another version of Primer."""
        return image.runtime != runtime.digest()

    async def _check_suitable(self, spec: SandboxSpec, image: manifests.ImageFacts) -> None:
        if image.id in self._suitable or not self.needs_runtime(image):
            return
        if extra := [path for path in image.volumes if path.rstrip("/") != spec.workdir]:
            raise ImageUnsuitable(
                f"The image {spec.image} declares the volume {extra[0]}: storage that no limit would hold.",
                hint="Build an image without that VOLUME line.",
            )
        body = manifests.helper_body(
            spec, image, mount=None, command=["python3", "-I", "-S", "-E", "-c", INTERPRETER_CHECK]
        )
        answer = await self._engine.run(lambda client: run_once(client, body), changes=True)
        if answer != "ok":
            raise ImageUnsuitable(
                f"The image {spec.image} cannot run the sandbox runtime: it lacks {answer or 'a python3 that starts'}.",
                hint="Use an image with a full python3 of version 3.9 or later.",
            )
        self._suitable.add(image.id)

    async def own_volume(self, spec: SandboxSpec, image: manifests.ImageFacts) -> None:
        """Gives the root of the workspace's volume to uid 1000, with a container that is never started."""
        mount = {
            "Type": "volume",
            "Source": spec.workspace_id,
            "Target": "/workspace",
            "VolumeOptions": {"NoCopy": True},
        }
        body = manifests.helper_body(spec, image, mount=mount, command=["true"])
        root = tarfile.TarInfo("workspace")
        root.type, root.mode, root.uid, root.gid = tarfile.DIRTYPE, 0o750, 1000, 1000

        def work(client: Any) -> None:
            with created(client, body) as container:
                client.put_archive(container, "/", pack([(root, b"")]))

        await self._engine.run(work, changes=True)

    async def ensure_runtime(self, spec: SandboxSpec, image: manifests.ImageFacts) -> None:
        """The read-only volume with our runtime is on the engine and holds exactly our bytes."""
        name = manifests.runtime_volume(runtime.digest())
        async with self._filling:
            self._filled[name] = await self._engine.run(
                lambda client: fill_runtime(client, spec, image, self._filled.get(name, "")), changes=True
            )

    async def drop_runtimes(self, instance_id: str, *, keep_current: bool) -> list[str]:
        """Removes the runtime volumes that this instance made and no container uses; returns their names.

        One that another instance needs is made again at its next start.
        """
        keep = manifests.runtime_volume(runtime.digest()) if keep_current else ""
        async with self._filling:
            return await self._engine.run(lambda client: drop_runtimes(client, instance_id, keep), changes=True)


def check_reference(reference: str) -> None:
    if not manifests.valid_image(reference):
        message = "is not the name of an image"
        raise Invalid(f"backend.image {message}.", errors=[FieldError("backend.image", message)])


def missing_hint(reference: str) -> str:
    if reference.startswith("primer/workspace-runtime"):
        return "Build it on the server: primer image build"
    return "Load or pull it on the engine's host, or put its registry in front: registry.example/name:tag"


def fill_runtime(client: Any, spec: SandboxSpec, image: manifests.ImageFacts, known: str) -> str:
    """Makes, fills and reads back the runtime volume unless it is the `known` one; returns its time of creation."""
    from docker.errors import NotFound

    digest, data = runtime.digest(), runtime.zipapp_bytes()
    name = manifests.runtime_volume(digest)
    try:
        volume = client.inspect_volume(name)
        if known and volume.get("CreatedAt") == known:
            return known
    except NotFound:
        # Not the label of an instance's own objects: instances of one version share it, and no sweep may take it.
        labels = {manifests.LABEL_RUNTIME: digest, LABEL_MADE_BY: spec.instance_id}
        volume = client.create_volume(name, labels=labels)
    mount = {
        "Type": "volume",
        "Source": name,
        "Target": manifests.RUNTIME_DIR,
        "VolumeOptions": {"NoCopy": True},
    }
    with created(client, manifests.helper_body(spec, image, mount=mount, command=["true"])) as container:
        if read_back(client, container) != hashlib.sha256(data).digest():
            file = tarfile.TarInfo(RUNTIME_NAME)
            file.size, file.mode = len(data), 0o644
            client.put_archive(container, manifests.RUNTIME_DIR, pack([(file, data)]))
            if read_back(client, container) != hashlib.sha256(data).digest():
                raise ProviderError("The engine did not store the sandbox runtime as it was sent.")
    return str(volume.get("CreatedAt") or "")


def drop_runtimes(client: Any, instance_id: str, keep: str) -> list[str]:
    from docker.errors import APIError

    found = client.volumes(filters={"label": f"{LABEL_MADE_BY}={instance_id}"})["Volumes"] or []
    removed = []
    for name in sorted(volume["Name"] for volume in found if volume["Name"] != keep):
        try:
            client.remove_volume(name)
            removed.append(name)
        except APIError as exc:
            if exc.status_code not in (404, 409):  # somebody was faster; a container, running or not, uses it
                raise
    return removed


def read_back(client: Any, container: str) -> bytes:
    """The hash of the runtime in the volume, b"" when there is none."""
    from docker.errors import NotFound

    try:
        stream, _ = client.get_archive(container, manifests.RUNTIME_PATH)
    except NotFound:
        return b""
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
        file = archive.extractfile(RUNTIME_NAME)
        return hashlib.sha256(file.read()).digest() if file else b""


@contextmanager
def created(client: Any, body: dict[str, Any]) -> Iterator[str]:
    """A container that exists while the block runs. Without a name: its labels lead the sweep to it after a crash."""
    container = client.create_container_from_config(body)["Id"]
    try:
        yield container
    finally:
        client.remove_container(container, force=True, v=True)


def follow_pull(client: Any, name: str, tag: str, hang_up: threading.Event) -> None:
    """Reads the progress of a pull to its end; as one answer it would be cut off by the limit on the time of an answer."""
    for line in client.pull(name, tag=tag, stream=True, decode=True):
        if "error" in line:
            raise ProviderError(log=str(line["error"])[:2000])
        if hang_up.is_set():
            return


def run_once(client: Any, body: dict[str, Any]) -> str:
    """The stdout of a helper that runs to its end, "" when it cannot start or fails."""
    from docker.errors import APIError

    with created(client, body) as container:
        try:
            client.start(container)
        except APIError:
            return ""  # the engine's way of saying that the program is not in the image
        code = client.wait(container, timeout=CHECK_TIMEOUT_S)["StatusCode"]
        text = client.logs(container, stdout=True, stderr=False)[:2000].decode("utf-8", "replace").strip()
    return text if code == 0 else ""


def pack(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
