"""Create-to-running, probes included, and destroy, each against the engine's own calls with the same flags.

Interleaved in one run, medians: `python -m benchmarks.create [--rounds 15]`. Prints one JSON object; times in ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import time
from typing import Any

from workspaces import confinement, image
from workspaces.providers import manifests
from workspaces.providers.base import SandboxSpec
from workspaces.providers.container import ContainerProvider
from workspaces.runtime import build as runtime
from workspaces.sandbox import Sandbox

INSTANCE = f"bench-{secrets.token_hex(4)}"


def spec() -> SandboxSpec:
    return SandboxSpec(INSTANCE, f"ws-{secrets.token_hex(8)}", 1, image=image.TAG)


async def ours(provider: ContainerProvider) -> dict[str, float]:
    """One workspace as the product makes it: start, channel, probes; then its removal."""
    made, marks = spec(), [time.perf_counter()]
    ref = await provider.start(made)
    marks.append(time.perf_counter())
    sandbox = Sandbox(lambda: provider.connect(ref), secrets.token_bytes(32), disk_bytes=made.disk_bytes)
    await sandbox.open()
    found = await confinement.verify(sandbox, made)
    marks.append(time.perf_counter())
    await sandbox.close()
    if found["verdict"] not in ("proven", "degraded"):
        raise SystemExit(f"the confinement is {found}")
    marks.append(time.perf_counter())
    await provider.destroy(ref)
    marks.append(time.perf_counter())
    return {"start": marks[1] - marks[0], "ready": marks[2] - marks[0], "destroy": marks[4] - marks[3]}


def engines(client: Any) -> dict[str, float]:
    """The same container by the engine alone: create (with its volume) and start; then the removal of both."""
    made = spec()
    facts = manifests.ImageFacts.from_inspect(client.inspect_image(made.image))
    body = manifests.container_body(made, facts, runtime.digest())
    before = time.perf_counter()
    container = client.create_container_from_config(body, made.workspace_id)["Id"]
    client.start(container)
    started = time.perf_counter()
    client.remove_container(container, force=True, v=True)
    client.remove_volume(made.workspace_id)
    return {"ready": started - before, "destroy": time.perf_counter() - started}


async def main(rounds: int) -> None:
    import docker

    for line in image.build():
        print(line)
    client = docker.APIClient()
    provider = ContainerProvider({}, {}, instance_id=INSTANCE)
    await ours(provider)  # the first one connects
    product, engine = [], []
    for _ in range(rounds):
        product.append(await ours(provider))
        engine.append(await asyncio.to_thread(engines, client))
    await provider.close()
    median = {name: statistics.median(one[name] for one in product) for name in product[0]}
    base = {name: statistics.median(one[name] for one in engine) for name in engine[0]}
    pairs = list(zip(product, engine, strict=True))
    figures = {
        "rounds": rounds,
        **{f"engine_{name}_ms": round(value * 1000, 1) for name, value in base.items()},
        **{f"{name}_ms": round(value * 1000, 1) for name, value in median.items()},
        **{f"{name}_ratio": round(statistics.median(o[name] / e[name] for o, e in pairs), 2) for name in base},
        **{f"{name}_ratio_of_medians": round(median[name] / base[name], 2) for name in base},
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    asyncio.run(main(parser.parse_args().rounds))
