"""The files by which Megatron Energon opens a dataset (``.nv-meta``, Energon 7): what its ``prepare`` would write.

The indexes of shards are there already, byte for byte as Energon writes them. Its table of members, ``index.sqlite``,
is for other datasets that point into this one, and is left out.
"""

from __future__ import annotations

import json

import yaml

from preshard.packer_service.report.dataset import open_dataset
from preshard.schemas.dataset.manifest_parts import decode_manifest_parts, stored_config
from preshard.schemas.manifest import ENERGON, LARGEST_MANIFEST, MANIFEST, SHARDS
from preshard.schemas.members import HEAD

INFO, SPLIT, DATASET = ".info.json", "split.yaml", "dataset.yaml"

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's, where PyYAML was built with it: the list of a hundred thousand shards takes it a fifth of a second, and
the other one 1.4."""


def write_energon(location: str) -> list[str]:
    """Writes ``.nv-meta`` into a dataset's folder, a function of its manifest alone; gives the names of the files.

    All shards are in the split ``train``. Of a sample Energon reads the head: which pack it is says it all to
    :func:`preshard.energon.pack_cooker`.

    Raises:
        ConfigError: there is no such folder, or it is not a dataset.
        ManifestInvalid: its manifest cannot be read.
    """
    folder, _ = open_dataset(location)
    head, shards = decode_manifest_parts(folder.read(MANIFEST, LARGEST_MANIFEST), MANIFEST)
    stored_config(head)
    counts = {f"{SHARDS}/{shard.name}": shard.packs for shard in shards}
    parts = {"train": list(counts), "val": [], "test": []}
    loaded = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset", "part_filter": [HEAD]}
    files = {
        SPLIT: yaml.dump({"split_parts": parts, "exclude": []}, Dumper=_DUMPER, sort_keys=False),
        DATASET: yaml.dump(loaded, Dumper=_DUMPER, sort_keys=False),
        INFO: json.dumps({"shard_counts": counts}, indent=2),  # last, as it makes the folder a dataset of Energon
    }
    for name, text in files.items():
        (folder / ENERGON).write(name, text.encode())
    return [f"{ENERGON}/{name}" for name in files]
