"""Record a short training for `rollyard ui --demo`.

    python -m examples.grpo.record            # a few minutes on two cores; replaces the recording in the package

The recording is made again when a release can no longer read the old one.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from examples.grpo.train import POOLS, WEAK, Options, arithmetic, train
from examples.local_server import end_pools, local_server, until_ready
from rollyard.cli.manifests import read_manifests
from rollyard.client import AsyncClient, Client
from rollyard.kinds.base import KindObject
from rollyard.page_proxy.recording import MODEL, RECORDING, RecordedLine, recorded_lines, write
from rollyard.store.store import Store

TOKENIZER = ("chat_template.jinja", "config.json", "tokenizer.json", "tokenizer_config.json")


async def begin(kubeconfig: Path, console: Console) -> None:
    pools = read_manifests((str(POOLS),), "default")
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        for pool in pools:
            await client.apply(pool)
        await until_ready(console, client, pools)


async def objects(kubeconfig: Path) -> list[KindObject]:
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        kinds = ("InferencePool", "RolloutPool", "Event")
        return [one for kind in kinds for one in (await client.list_objects(kind))[0]]


async def lines(data: Path, shown: list[KindObject]) -> list[RecordedLine]:
    store = await Store.open(data)
    try:
        return await recorded_lines(store, shown)
    finally:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RECORDING)
    given = parser.parse_args()
    console = Console()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rollyard-recording-") as name:
        folder = Path(name)
        options = Options(
            minutes=20, steps=given.steps, groups=3, n=4, updates=2, rate=2e-4, seed=0, stream=False, held_out=12, every=2,
            threads=1, out=folder,
        )  # fmt: skip
        with local_server(folder, {}) as kubeconfig:
            asyncio.run(begin(kubeconfig, console))
            with Client(kubeconfig=kubeconfig) as client:
                train(client, options, arithmetic(options), console)
            shown = asyncio.run(objects(kubeconfig))
            asyncio.run(end_pools(console, kubeconfig))
        tokenizer = {name: (WEAK / name).read_bytes() for name in TOKENIZER}
        folders = {str(WEAK): MODEL, str(folder): "/training"}
        write(asyncio.run(lines(folder / "data", shown)), tokenizer, folders, given.out)
    console.print(f"written: {given.out}, {given.out.stat().st_size} bytes", soft_wrap=True)


if __name__ == "__main__":
    main()
