"""Which manifest of an image this machine uses, by its CPU, and images of other machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from rollyard.core.errors import ImageUnavailable
from rollyard.images import oci_manifest
from rollyard.images.cache import ImageCache
from rollyard.images.cpu_level import level_of
from rollyard.images.oci_manifest import (
    INDEX_TYPES,
    BadManifest,
    Descriptor,
    ManifestSearch,
    machine,
    read_config,
)
from rollyard.kinds.values.image_reference import parse_image
from tests.support.image_files import names
from tests.support.image_registry import BASE, Front, Pusher, digest, gz, tar

ZEN_4 = (
    "sse sse2 ht pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt xsave avx f16c lahf_lm abm bmi1 avx2 bmi2 avx512f "
    "avx512dq avx512cd avx512bw avx512vl"
)
OTHER = "arm64" if machine() == "amd64" else "amd64"


def test_the_level_of_a_cpu() -> None:
    zen = set(ZEN_4.split())
    assert [level_of(zen), level_of(zen - {"avx512cd"}), level_of(zen - {"movbe"}), level_of(zen - {"cx16"})] == [
        4,
        3,
        2,
        1,
    ]
    assert level_of(set()) == 1


@pytest.mark.parametrize(
    ("level", "listed", "chosen"),
    [
        (1, ["v4", "v3", "", "v2"], ""),
        (3, ["v4", "", "v2", "v3"], "v3"),
        (4, ["", "v3"], "v3"),
        (2, ["v4", "v1"], "v1"),
        (4, ["v1", ""], "v1"),
        (4, ["new", "v1"], "v1"),
        (4, ["new"], "new"),
    ],
)
def test_the_best_variant_that_this_cpu_has(
    monkeypatch: pytest.MonkeyPatch, level: int, listed: Sequence[str], chosen: str
) -> None:
    _amd64(monkeypatch, level)
    assert ManifestSearch().next(_index([_entry("amd64", one) for one in listed])) == Descriptor(
        digest(chosen.encode()), 1
    )


def test_an_image_for_a_better_cpu_only_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    _amd64(monkeypatch, 2)
    said = "it is built for linux/amd64/v3, linux/arm64/v8, not for linux/amd64/v2"
    with pytest.raises(BadManifest, match=said):
        ManifestSearch().next(_index([_entry("amd64", "v3"), _entry("arm64", "v8")]))
    with pytest.raises(BadManifest, match="it is built for linux/amd64/v3, not for linux/amd64/v2"):
        read_config({"architecture": "amd64", "variant": "v3"})
    assert read_config({"architecture": "amd64", "os": "linux"}) == read_config({}), "what names nothing is tried"


async def test_a_nested_index_gives_the_image_of_this_machine(registry: Pusher, cache: ImageCache) -> None:
    """The first of the two inner ones has nothing for this machine. Between them stands what BuildKit says of a build."""
    ours = registry.image("nested", "ours", [BASE, gz(tar(("etc/mine", b"1")))])
    other = registry.image("nested", "other", [BASE], architecture=OTHER)
    inner = [
        registry.index("nested", "first", {OTHER: other}),
        registry.index("nested", "second", {OTHER: other, machine(): ours}),
    ]
    listed = [{"mediaType": INDEX_TYPES[0], "digest": one, "size": 1} for one in inner]
    attestation = _entry("unknown", "") | {"platform": {"os": "unknown", "architecture": "unknown"}, "digest": other}
    whole = {"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": [listed[0], attestation, listed[1]]}
    registry.manifest("nested", "v1", whole)
    with await cache.get(parse_image(f"docker://{registry.host}/nested:v1")) as image:
        assert image.digest == ours
        assert names(image, "etc") == ["mine", "name"]
    registry.manifest("nested", "wrong", {**whole, "manifests": [listed[0], attestation]})
    with pytest.raises(ImageUnavailable, match=f"built for linux/{OTHER}, not for linux/{machine()}"):
        await cache.get(parse_image(f"docker://{registry.host}/nested:wrong"))


async def test_a_single_manifest_of_another_machine_is_refused_before_its_layers(
    registry: Pusher, front: Front, cache: ImageCache
) -> None:
    layer = gz(tar(("bin/foreign", b"1")))
    pushed = registry.image("foreign", "v1", [layer], architecture=OTHER)
    for name in ("foreign:v1", f"foreign@{pushed}", f"foreign:v1@{pushed}"):
        with pytest.raises(
            ImageUnavailable, match=f"it is built for linux/{OTHER}, not for linux/{machine()}"
        ) as caught:
            await cache.get(parse_image(f"docker://{front.host}/{name}"))
        assert caught.value.permanent
    assert front.count(digest(layer)) == 0


def _amd64(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    monkeypatch.setattr(oci_manifest, "machine", lambda: "amd64")
    monkeypatch.setattr(oci_manifest, "cpu_level", lambda: level)


def _entry(architecture: str, variant: str) -> dict[str, Any]:
    named = {"os": "linux", "architecture": architecture, **({"variant": variant} if variant else {})}
    return {"digest": digest(variant.encode()), "size": 1, "platform": named}


def _index(listed: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps({"schemaVersion": 2, "manifests": listed}).encode()


def test_a_working_folder_without_a_slash_is_below_the_root() -> None:
    for named, folder in (("app", "/app"), ("/app/", "/app"), ("./a/../b", "/b")):
        assert read_config({"config": {"WorkingDir": named}}).workdir == folder
