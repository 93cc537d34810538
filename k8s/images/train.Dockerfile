# The trainer on CPUs. Built from the repository's root:
#   docker build -f k8s/images/train.Dockerfile -t preshard-train:0.3.0 .
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
COPY constraints.txt /tmp/
COPY --from=wheel /requirements.txt /tmp/
# pip takes the version +cpu for newer than the same one without it, so this is the CPU build of torch: 2 GB less.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    -c /tmp/constraints.txt -r /tmp/requirements.txt
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir --no-deps --no-index /dist/*.whl
COPY k8s/images/launch.py /
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin preshard
ENV HOME=/tmp PYTHONUNBUFFERED=1
USER 10001:10001
ENTRYPOINT ["python", "/launch.py"]
