# The inspection service: without Ray and torch. Built from the repository's root:
#   docker build -f k8s/images/serve.Dockerfile -t preshard-serve:0.1.0 .
FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml README.md ./
COPY schemas schemas
COPY packer_service packer_service
COPY trainer trainer
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.11-slim-bookworm
COPY constraints.txt /tmp/
RUN pip install --no-cache-dir -c /tmp/constraints.txt \
    av click fastapi jaxtyping mistral-common numba numpy pillow plotly prometheus-client pyarrow pydantic pyyaml \
    rich tokenizers uvicorn
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir --no-deps --no-index /dist/*.whl
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin preshard
ENV HOME=/tmp NUMBA_CACHE_DIR=/tmp/numba PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
ENTRYPOINT ["preshard"]
# beyond its own machine the service asks for a token: docker run -e PRESHARD_TOKEN=... -v DATASETS:/data/datasets:ro
CMD ["serve", "/data/datasets", "--host", "0.0.0.0", "--port", "8000"]
