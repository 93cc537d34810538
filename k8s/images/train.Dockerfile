# The trainer on CPUs. Built from the repository's root:
#   docker build -f k8s/images/train.Dockerfile -t preshard-train:0.1.0 .
FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml README.md ./
COPY schemas schemas
COPY packer_service packer_service
COPY trainer trainer
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.11-slim-bookworm
COPY constraints.txt /tmp/
# +cpu is newer than the same version without, so the CPU build of torch is taken: 2 GB less
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c /tmp/constraints.txt \
    click jaxtyping numpy pillow pyarrow pydantic pyyaml torch
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir --no-deps --no-index /dist/*.whl
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin preshard
ENV HOME=/tmp PYTHONUNBUFFERED=1
USER 10001:10001
ENTRYPOINT ["torchrun"]
