# The inspection service: without Ray and torch. Built from the repository's root:
#   docker build -f k8s/images/serve.Dockerfile -t preshard-serve:0.3.0 .
FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
# What is to be installed changes less often than the code, so the layer with it is kept.
COPY pyproject.toml ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
    every = p['dependencies'] + p['optional-dependencies']['serve']; \
    print(*(one for one in every if not one.startswith('torch')), sep='\n')" > /requirements.txt
COPY README.md LICENSE ./
COPY preshard preshard
COPY schemas schemas
COPY packer_service packer_service
COPY trainer trainer
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.11-slim-bookworm
COPY constraints.txt /tmp/
COPY --from=wheel /requirements.txt /tmp/
RUN pip install --no-cache-dir -c /tmp/constraints.txt -r /tmp/requirements.txt
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir --no-deps --no-index /dist/*.whl
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin preshard
ENV HOME=/tmp NUMBA_CACHE_DIR=/tmp/numba PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
ENTRYPOINT ["preshard"]
# On any address but the machine's own the service wants a token: docker run -e PRESHARD_TOKEN=... -v DATASETS:/data/datasets:ro
CMD ["serve", "/data/datasets", "--host", "0.0.0.0", "--port", "8000"]
