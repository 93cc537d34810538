# The trainer on CUDA devices. Built from the repository's root:
#   docker build -f k8s/images/train-cuda.Dockerfile -t preshard-train:0.3.0-cuda .
FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
# What is to be installed changes less often than the code, so the layer with it is kept.
COPY pyproject.toml ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
    print(*p['dependencies'], *p['optional-dependencies']['train'], sep='\n')" > /requirements.txt
COPY README.md LICENSE ./
COPY preshard preshard
COPY schemas schemas
COPY packer_service packer_service
COPY trainer trainer
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.11-slim-bookworm
# The one compiler in these images: Triton, which compiles FlexAttention, builds each kernel's launcher in C.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/
COPY --from=wheel /requirements.txt /tmp/
# PyPI's torch for Linux is the CUDA build and brings CUDA's libraries; the node brings the driver.
RUN pip install --no-cache-dir -c /tmp/constraints.txt -r /tmp/requirements.txt
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir --no-deps --no-index /dist/*.whl
COPY k8s/images/launch.py /
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin preshard
# What the NVIDIA container runtime makes visible.
ENV HOME=/tmp PYTHONUNBUFFERED=1 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
ENTRYPOINT ["python", "/launch.py"]
