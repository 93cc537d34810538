# The packing job: Ray's nodes and the pod that submits. Built from the repository's root:
#   docker build -f k8s/images/pack.Dockerfile -t preshard-pack:0.3.0 .
FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
# What is to be installed changes less often than the code, so the layer with it is kept.
COPY pyproject.toml ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
    print(*p['dependencies'], *p['optional-dependencies']['pack'], sep='\n')" > /requirements.txt
COPY README.md LICENSE ./
COPY preshard preshard
COPY schemas schemas
COPY packer_service packer_service
COPY trainer trainer
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.11-slim-bookworm
# Older releases of KubeRay probe by wget.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/*
# Installed into the system's Python: KubeRay starts Ray in a login shell, which sets PATH anew.
COPY constraints.txt /tmp/
COPY --from=wheel /requirements.txt /tmp/
# pip takes the version +cpu for newer than the same one without it, so this is the CPU build of torch: 2 GB less.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    -c /tmp/constraints.txt -r /tmp/requirements.txt "ray[default]"
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir --no-deps --no-index /dist/*.whl
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin preshard
# The root file system is read-only in the cluster, so whatever is written goes to /tmp.
ENV HOME=/tmp NUMBA_CACHE_DIR=/tmp/numba PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0
USER 10001:10001
ENTRYPOINT ["preshard"]
