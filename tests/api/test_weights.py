"""The route of a pool's weights, for a pool that does not exist."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.support.outside_api import Serve


async def test_a_wrong_pool_is_answered_with_the_existing_ones(serving: Serve) -> None:
    async with serving() as api:
        path = f"{api.url}/apis/rollyard.dev/v1alpha1/namespaces/default/inferencepools/polcy/weights"
        for answer in (api.http.get(path), api.http.post(path, json={"version": "v1", "path": "/w"})):
            async with answer as found:
                assert found.status == 404
                body = await found.json()
                assert body["reason"] == "NotFound"
                assert "no InferencePool 'polcy'" in body["message"]
                assert body["message"].endswith("existing ones: policy")


async def test_a_model_that_the_engine_cannot_serve_is_refused_when_it_is_applied(
    serving: Serve, model_dir: Path, tmp_path: Path
) -> None:
    llama = Path(shutil.copytree(model_dir, tmp_path / "llama"))
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    spec = {"model": {"path": str(llama)}, "engine": {"embedded": {}}, "replicas": 1}
    body = {"kind": "InferencePool", "metadata": {"name": "llama"}, "spec": spec}
    async with serving() as api:
        pools = f"{api.url}/apis/rollyard.dev/v1alpha1/namespaces/default/inferencepools"
        async with api.http.post(f"{pools}?dryRun=All", json=body) as refused:
            assert refused.status == 422
            (cause,) = (await refused.json())["details"]["causes"]
        assert cause["field"] == "spec.model.path"
        assert cause["message"].startswith("use engine.vllm: the embedded engine serves only Qwen3")
        good = {**body, "metadata": {"name": "tiny"}, "spec": {**spec, "model": {"path": str(model_dir)}}}
        async with api.http.post(pools, json=good) as made:
            assert made.status == 201, await made.text()
        for path in ("/etc", "/dev/null", "/tmp/a\0b"):
            async with api.http.post(f"{pools}/tiny/weights", json={"version": "v1", "path": path}) as refused:
                assert (refused.status, (await refused.json())["details"]["causes"][0]["field"]) == (422, "path")
