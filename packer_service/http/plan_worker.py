"""A what-if plan in a process of its own, so that no request can use up the service's time or memory.

Standard input holds one line of JSON (``config``, ``dp_sizes``, ``seconds``, ``memory``), then a table of lengths as an
Arrow stream; standard output gets one JSON object: ``figures``, or ``wrong`` with what is wrong with the request.
"""

from __future__ import annotations

import json
import resource
import sys

import pyarrow as pa


def main() -> None:
    asked = json.loads(sys.stdin.buffer.readline())
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = asked["memory"] if hard == resource.RLIM_INFINITY else min(asked["memory"], hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    # the process that asks may read with less than a plan takes
    _, hard_data = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard_data, hard_data))
    # the parent ends this process in time; should the parent be killed itself, this limit does, also with two threads
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"] * 2, asked["seconds"] * 2 + 1))
    table = pa.ipc.open_stream(sys.stdin.buffer).read_all()

    from preshard.packer_service.report.what_if import planned

    try:
        answer = planned(table, asked["config"], asked["dp_sizes"])
    except MemoryError:
        answer = {"wrong": f"the plan takes more than {limit} bytes of memory; ask about fewer documents"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
